"""Handles the forms for logs and log servers, with the token of the visitor's session."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

from rollbook.api.access.core.grants import Duty, Right
from rollbook.api.dashboard.form_fields import DoAct, require_typed, unknown_act
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import with_query
from rollbook.logservice.ids import LogName

_ONCE_CHARACTERS: Final = 48  # An idempotency key has at most 59 characters.
_ACTS_ON_LOG: Final = {
    "append": (Right.APPEND, "Append"),
    "truncate": (Right.ADMIN, "Truncate"),
    "seal": (Right.ADMIN, "Seal"),
    "roll": (Right.ADMIN, "RollLog"),
    "transfer": (Right.ADMIN, "TransferLog"),
}


class LogActs:
    """`acts` maps the path of each form, below `PREFIX`, to the function that handles the form."""

    def __init__(self, sources: PageSources) -> None:
        self._managing = sources.managing
        self._logs = sources.logs
        self.acts: Mapping[str, DoAct] = {
            "/logs": self._act_on_logs,
            "/log": self._act_on_log,
            "/server": self._act_on_server,
        }

    async def _act_on_logs(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        if fields.get("act") != "create":
            raise unknown_act(fields.get("act", ""))
        name = fields.get("name", "").strip()
        log = str(LogName.parse(name))
        with self._managing.act_on_log(Right.ADMIN, log, "EnsureLog"):
            was_there = await self._logs.create(fields["token"], log)
        said = "exists already" if was_there else "is made"
        return with_query("/log", name=name), f"{name} {said}."

    async def _act_on_log(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb not in _ACTS_ON_LOG:
            raise unknown_act(verb)
        log = str(LogName.parse(name))
        right, method = _ACTS_ON_LOG[verb]
        self._managing.require_on_log(right, log, method)
        if verb in ("truncate", "seal"):
            require_typed(fields, name)
        with self._managing.act_on_log(right, log, method):
            note = await self._do_on_log(verb, log, fields)
        return with_query("/log", name=name), note

    async def _do_on_log(self, verb: str, log: str, fields: Mapping[str, str]) -> str:
        token = fields["token"]
        if verb == "append":
            key = fields.get("key", "")
            value = fields.get("value", "").encode()
            once = _once_of(fields.get("once", ""), key, fields.get("value", ""))
            offset = await self._logs.append(token, log, value, key.encode() if key else None, once)
            return f"Appended at {offset}."
        if verb == "truncate":
            done = await self._logs.truncate(token, log, fields.get("before", ""))
            return f"The first record is {done['new_head']} now."
        if verb == "seal":
            return f"Sealed at {await self._logs.seal(token, log)}."
        if verb == "roll":
            return f"Segment {await self._logs.roll(token, log)} is written now."
        owner = await self._logs.transfer(token, log, fields.get("to", ""))
        return f"Its owner is {owner} now."

    async def _act_on_server(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb not in ("drain", "resume"):
            raise unknown_act(verb)
        with self._managing.act(Duty.OPERATE, "DrainServer", server=name, resume=verb == "resume"):
            left = await self._logs.drain(fields["token"], name, resume=verb == "resume")
        said = f"{name} has {left} logs to hand over." if verb == "drain" else f"{name} serves."
        return with_query("/server", name=name), said


def _once_of(drawn: str, *said: str) -> str | None:
    """The idempotency key of an append form: a digest of the form's random number and content, so that a form
    that is sent twice appends once (DB9). None: the form has no number."""
    if not drawn:
        return None
    return hashlib.sha256(json.dumps([drawn, *said]).encode()).hexdigest()[:_ONCE_CHARACTERS]

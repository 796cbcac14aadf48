"""Handles the forms for bookies, ledgers, recovery and callbacks."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request

from rollbook.api.access.core.grants import Duty
from rollbook.api.dashboard import callback_screens
from rollbook.api.dashboard.error_texts import sentence
from rollbook.api.dashboard.event_screens import EVENT_KINDS
from rollbook.api.dashboard.form_fields import (
    DoAct,
    ledger_id_of,
    number_in,
    require_typed,
    unknown_act,
)
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import with_query
from rollbook.api.rest.bookie_management_routes import BookieActs
from rollbook.api.rest.callback_routes import CallbackActs
from rollbook.api.rest.ledger_routes import begin_recover, begin_verify
from rollbook.api.rest.operation_registry import Facts, Operation
from rollbook.proto.formats.lifecycle import LifecycleState

_STATES: Final = {
    "drain": LifecycleState.DRAINING,
    "undrain": LifecycleState.ACTIVE,
    "drained": LifecycleState.DRAINED,
}


class ClusterActs:
    """`acts` maps the path of each form, below `PREFIX`, to the function that handles the form."""

    def __init__(self, sources: PageSources) -> None:
        self._admin = sources.admin
        self._managing = sources.managing
        self._bookies = BookieActs(sources.admin, sources.managing, sources.operations)
        self._callbacks = CallbackActs(sources.admin, sources.managing)
        self.acts: Mapping[str, DoAct] = {
            "/bookie": self._act_on_bookie,
            "/ledgers/{ledger_id}": self._act_on_ledger,
            "/recovery": self._act_on_recovery,
            "/callbacks": self._act_on_callbacks,
            "/callback": self._act_on_callback,
        }

    async def _act_on_bookie(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        target = with_query("/bookie", id=name)
        if verb in _STATES:
            if verb == "drained":
                require_typed(fields, name)
            done = await self._bookies.set_lifecycle(name, _STATES[verb])
            return target, _ended(done, lambda found: f"{name} is {found['lifecycle']}.")
        if verb == "judge":
            done = await self._bookies.judge([name])
            return target, _ended(done, lambda found: _judged(name, found))
        if verb == "remove":
            require_typed(fields, name)
            given = fields.get("give_up", "").strip()
            give_up = number_in(given, "the number of ledgers", 0) if given else None
            done = await self._bookies.remove(name, give_up)
            return "/bookies", _ended(done, lambda _: f"{name} is removed.")
        raise unknown_act(verb)

    async def _act_on_ledger(self, request: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        ledger_id, verb = ledger_id_of(request), fields.get("act", "")
        if verb == "verify":
            await begin_verify(self._admin, self._managing, ledger_id)
        elif verb == "recover":
            require_typed(fields, str(ledger_id))
            await begin_recover(self._admin, self._managing, ledger_id)
        else:
            raise unknown_act(verb)
        return "/operations", f"Begun for ledger {ledger_id}."

    async def _act_on_recovery(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        verb, act, admin = fields.get("act", ""), self._managing.act, self._admin
        if verb == "audit":
            with act(Duty.OPERATE, "Audit", anyway=False):
                found = await admin.audit(anyway=False)
            return "/recovery", f"The auditor {found['auditor'] or '(none leads now)'} was asked."
        if verb in ("pause", "resume"):
            enabled = verb == "resume"
            with act(Duty.OPERATE, "SetRecoverySwitch", enabled=enabled):
                await admin.set_switch(enabled=enabled)
            return "/recovery", f"Repair is {'enabled' if enabled else 'paused'}."
        if verb == "delay":
            seconds = number_in(fields.get("delay_s", ""), "the delay", 0, 2**31 - 1)
            with act(Duty.OPERATE, "SetLostBookieDelay", delay_s=seconds):
                await admin.set_delay(seconds)
            return "/recovery", f"The delay is {seconds} s."
        if verb == "rate":
            rate = number_in(fields.get("bytes_per_s", ""), "the rate", 0, 10**17 - 1)
            with act(Duty.OPERATE, "SetRecoveryRate", bytes_per_s=rate):
                await admin.set_rate(rate)
            return "/recovery", f"The rate is {f'{rate} bytes/s' if rate else 'unlimited'}."
        raise unknown_act(verb)

    async def _act_on_callbacks(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        if fields.get("act") != "create":
            raise unknown_act(fields.get("act", ""))
        kinds = [kind for kind in EVENT_KINDS if fields.get(f"{callback_screens.KIND_FIELD}{kind}")]
        url, bookie = fields.get("url", "").strip(), fields.get("bookie", "").strip()
        made = await self._callbacks.create(url, kinds, bookie or None)
        name = callback_screens.short_id(made["id"])
        said = f"Callback {name} is created. Its secret, shown only here: {made['secret']}"
        return with_query("/callback", id=made["id"]), said

    async def _act_on_callback(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb == "test":
            found = await self._callbacks.test(name)
            said = f"The test is {found['outcome']}. {sentence(found['problem'] or '')}"
            return with_query("/callback", id=name), said.rstrip()
        if verb == "delete":
            self._managing.require(Duty.REMOVE, "DeleteCallback")
            require_typed(fields, callback_screens.short_id(name))
            await self._callbacks.delete(name)
            return "/callbacks", f"Callback {callback_screens.short_id(name)} is deleted."
        raise unknown_act(verb)


def _ended(operation: Operation, say: Callable[[Facts], str]) -> str:
    if operation.ended_ms is None:
        return (
            f"It continues as operation {operation.id}. The Operations screen will show the result."
        )
    return say(operation.result or {})


def _judged(name: str, found: Mapping[str, Any]) -> str:
    if found["safe_to_remove"]:
        return f"{name} may be removed: no ledger names it, and it takes no entries."
    taking = " It still takes entries." if found["taking_entries"] else ""
    return (
        f"{name} cannot be removed safely yet: {found['ledgers_naming_them']} ledgers name it; without it "
        f"{found['below_ack_quorum_without_them']} fall below their ack quorum, and "
        f"{found['without_a_copy_without_them']} lose their last copy of an entry.{taking}"
    )

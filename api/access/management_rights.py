"""Checks who may manage the cluster. Each route and each page calls this before it reads or changes anything (MG1)."""

from contextlib import AbstractContextManager
from typing import Any

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import CALLER, AuthenticatedCaller
from rollbook.api.access.core.grants import Duty, Right
from rollbook.api.access.permission_errors import refusal_of_duty, refusal_of_right
from rollbook.proto.errors import Unauthorized


class Managing:
    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def require(self, duty: Duty, method: str = "") -> AuthenticatedCaller:
        """Returns the caller. Raises `Unauthorized` with the missing right, and the audit records the refusal."""
        caller = CALLER.get()
        name = caller.principal.name
        if caller.principal.grants.may_manage(duty):
            return caller
        raise self._refused(caller, refusal_of_duty(name, duty), method)

    def require_on_log(self, right: Right, log: str, method: str = "") -> AuthenticatedCaller:
        """Like `require`, for one log. `log`: the log's full name. Raises `Unauthorized`."""
        caller = CALLER.get()
        if caller.principal.grants.may_steer(right, log):
            return caller
        refusal = refusal_of_right(caller.principal.name, right, log)
        raise self._refused(caller, refusal, method, log=log)

    def _refused(
        self, caller: AuthenticatedCaller, refusal: Unauthorized, method: str, **about: str
    ) -> Unauthorized:
        where = {"method": method, **about} if method else about
        name = caller.principal.name
        self._audit.refused(refusal, principal=name, peer=caller.peer, **where)
        return refusal

    def act(
        self, duty: Duty, method: str, *, only_begins: bool = False, **about: Any
    ) -> AbstractContextManager[dict[str, Any]]:
        """Returns a context for a change; the audit records the result. Raises `Unauthorized`."""
        caller = self.require(duty, method)
        return self._audit.act(
            principal=caller.principal.name,
            peer=caller.peer,
            only_begins=only_begins,
            method=method,
            **about,
        )

    def act_on_log(
        self, right: Right, log: str, method: str
    ) -> AbstractContextManager[dict[str, Any]]:
        """Like `act`, for a change of one log. `log`: the log's full name."""
        caller = self.require_on_log(right, log, method)
        return self._audit.act(
            principal=caller.principal.name, peer=caller.peer, method=method, log=log
        )

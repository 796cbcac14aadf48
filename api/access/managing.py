"""Who may manage the cluster: asked by each route and each page before anything is looked at or changed (MG1)."""

from contextlib import AbstractContextManager
from typing import Any

from rollbook.api.access.audit import Audit
from rollbook.api.access.authenticator import CALLER, Caller
from rollbook.api.access.core.grants import Duty
from rollbook.api.access.refusals import refusal_of_duty


class Managing:
    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def require(self, duty: Duty, method: str = "") -> Caller:
        """Raises `Unauthorized` with the right that is missing; the audit hears of it."""
        caller = CALLER.get()
        name = caller.principal.name
        if caller.principal.grants.may_manage(duty):
            return caller
        refusal = refusal_of_duty(name, duty)
        where = {"method": method} if method else {}
        self._audit.refused(refusal, principal=name, peer=caller.peer, **where)
        raise refusal

    def act(
        self, duty: Duty, method: str, *, only_begins: bool = False, **about: Any
    ) -> AbstractContextManager[dict[str, Any]]:
        """Something is changed meanwhile; the audit hears how it ended. Raises `Unauthorized`."""
        caller = self.require(duty, method)
        return self._audit.act(
            principal=caller.principal.name,
            peer=caller.peer,
            only_begins=only_begins,
            method=method,
            **about,
        )

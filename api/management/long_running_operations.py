"""Management of lasting operations over HTTP: begins, lists and cancels them. A recovery server carries them
out.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.api.cli.ledger.segment_guard import HTTP_INSTEAD_OF_RECOVERY, require_no_part
from rollbook.api.cli.recovery.recover_bookies import require_absent
from rollbook.api.management.store_calls import StoreCalls, steps_for_http
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.errors import InvalidRequest, Missing, OutcomeUnknown
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import Clock
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.core.operations import LastingOperation, id_of_key
from rollbook.recovery.operation_nodes import OperationNodes

Facts = dict[str, Any]


class OperationManagement:
    def __init__(
        self, ledgers: Ledgers, calls: StoreCalls, departures: Departures, clock: Clock
    ) -> None:
        self._ledgers = ledgers
        self._calls = calls
        self._departures = departures
        self._clock = clock
        self._operations = OperationNodes(ledgers.store, ledgers.cluster)

    async def list_page(self, after: str, limit: int) -> tuple[list[Facts], str | None]:
        """Returns the operations in metadata, newest first. `after` is the id of the last operation of the
        previous page.
        """
        found = [each.operation for each in await self._calls.look(self._operations.list())]
        ids = [each.id for each in found]
        begins = ids.index(after) + 1 if after in ids else 0
        page = found[begins : begins + limit]
        rest = page[-1].id if len(found) > begins + limit else None
        return [self._operation_facts(each) for each in page], rest

    async def read(self, operation_id: str) -> Facts:
        """Raises `Missing`."""
        found = await self._calls.look(self._operations.read(operation_id))
        if found is None:
            raise _no_operation(operation_id)
        return self._operation_facts(found.operation)

    async def begin(
        self, kind: str, about: Mapping[str, Any], principal: str, key: str | None
    ) -> Facts:
        """Begins an operation. Raises `DuplicateDiffers` if `key` belongs to a different request, `DrainBlocked`,
        `InvalidRequest`, `PartOfLog`.
        """
        about = await self._checked(
            kind, dict(about), is_new=await self._find_begun(principal, key) is None
        )
        operation_id = id_of_key(principal, key) if key else secrets.token_hex(16)
        now_ms = self._clock.wall_us() // 1000
        wanted = LastingOperation(operation_id, kind, about, principal, now_ms)
        find_out = f"send GET /api/v1/operations/{operation_id} to see whether it was begun"
        try:
            begun = await self._calls.act(self._operations.create(wanted, now_ms), find_out)
        except OutcomeUnknown as error:
            error.ids = {**error.ids, "operation": f"/api/v1/operations/{operation_id}"}
            raise
        return self._operation_facts(begun)

    async def _find_begun(self, principal: str, key: str | None) -> Any:
        """Returns the operation that the caller began with this key, or None."""
        return (
            await self._calls.look(self._operations.read(id_of_key(principal, key)))
            if key
            else None
        )

    async def _checked(self, kind: str, about: Facts, *, is_new: bool) -> Facts:
        """Refuses an impossible request at once, before an operation is created."""
        if "ledger_id" in about and is_new:
            await self._calls.look(self._ledgers.metadata(about["ledger_id"], fresh=True))
        if kind == "recover" and is_new:
            ids = [about["ledger_id"]]
            await self._calls.look(
                require_no_part(
                    self._ledgers, ids, instead=HTTP_INSTEAD_OF_RECOVERY, may_insist=False
                )
            )
        if "bookies" not in about:
            return about
        bookies = bookie_ids_of(about["bookies"])
        about = about | {"bookies": [str(each) for each in bookies]}
        if "to" in about:
            targets = bookie_ids_of(about["to"])
            about["to"] = [str(each) for each in targets]
            if clash := set(bookies).intersection(targets):
                raise InvalidRequest(
                    f"`to` names {', '.join(sorted(clash))}, which the operation is to empty"
                )
        if not is_new:
            return about
        if kind == "drain":
            drain = self._departures.check(bookies, is_forced=about["force"])
            await self._calls.walk(drain, "no operation was begun: send the request again")
        else:
            with steps_for_http():
                require_absent(self._ledgers, bookies)
            work = self._departures.require_named(bookies)
            await self._calls.walk(work, "no operation was begun: send the request again")
        return about

    async def cancel(self, operation_id: str) -> Facts:
        """Cancels an operation; a running one stops soon after. Raises `Missing`, `OperationEnded`."""
        now_ms = self._clock.wall_us() // 1000
        if await self._calls.look(self._operations.read(operation_id)) is None:
            raise _no_operation(operation_id)
        change = self._operations.change(operation_id, lambda each: each.cancel_asked(now_ms))
        find_out = f"send GET /api/v1/operations/{operation_id} to see its state"
        return self._operation_facts(await self._calls.act(change, find_out))

    def _operation_facts(self, operation: LastingOperation) -> Facts:
        shown = (
            "id",
            "kind",
            "principal",
            "created_ms",
            "started_ms",
            "ended_ms",
            "done",
            "total",
            "result",
            "problem",
        )
        return {name: getattr(operation, name) for name in shown} | {
            "about": dict(operation.about),
            "state": operation.state.value,
            "cancel_asked": operation.is_cancel_asked,
            "eta_s": operation.eta_s(self._clock.wall_us() // 1000),
        }


def bookie_ids_of(names: Sequence[str]) -> list[BookieId]:
    return list(dict.fromkeys(parse_bookie_id(name) for name in names))


def _no_operation(operation_id: str) -> Missing:
    return Missing(
        "there is no such operation",
        operation=operation_id,
        next_step="send GET /api/v1/operations to list the operations of the last seven days",
    )

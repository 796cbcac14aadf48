"""BookKeeper's own paths for a whole cluster, with its names and statuses: scripts for Java bookies keep working.

Differences from BookKeeper 4.18 (`tests/interop/test_http.py` sends the same requests to a Java bookie):

- If there is no auditor, or no ledger lacks copies, the response is empty instead of 404.
- A missing thing is 404 and an invalid request is 400, where BookKeeper responds with 404, 500, or 200 without doing
  anything. A wrong method is 405 instead of 404.
- Responses have a media type.
- Background work is an operation: the response is 202 with its state, instead of 200 with a sentence. Cookies are
  kept; `DELETE cookies/{id}` deletes one that is no longer needed.
- `ledger/list` has pages of 100 ledgers with metadata or 1,000 without, and the metadata is JSON instead of the node's
  bytes.
- `ledger/metadata` hides the password, which BookKeeper shows.
- `ledger/read` requires the right to administer everything, since entries may contain records of logs. It returns at
  most 1,000 entries and 4 MiB at a time.
- Errors are RFC 9457 problems with the same statuses as on all our routes.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.rest.base_models import CamelCaseModel
from rollbook.api.rest.bookie_management_routes import BookieActs
from rollbook.api.rest.cluster_admin_interface import ACTS, AWAY, ClusterAdmin
from rollbook.api.rest.cluster_models import ClusterOperation
from rollbook.api.rest.operation_routes import begin, begun_answer, begun_at
from rollbook.api.rest.problems import describe_problems
from rollbook.proto.errors import (
    EntryUnavailable,
    InvalidRequest,
    NoSuchLedger,
    Overloaded,
    PartOfLog,
    RecoveryIncomplete,
)
from rollbook.proto.ids import LEDGER_ID_MAX

_WITH_METADATA: Final = 100
_WITHOUT: Final = 1000
_PAGES_MAX: Final = 100  # A page is reached by reading all earlier ones; `after` has no such limit.
_UNITS: Final = ("", "KB", "MB", "GB", "TB")
_GOES_ON: Final[dict[int | str, dict[str, Any]]] = {202: {"model": ClusterOperation}}
_LedgerId = Annotated[int, Query(ge=0, le=LEDGER_ID_MAX)]
_EntryId = Annotated[int, Query(ge=0, le=LEDGER_ID_MAX)]
_Page = Annotated[int, Query(ge=1, le=_PAGES_MAX)]
_Bookie = Annotated[str, Query(max_length=255)]


class ClusterInfo(CamelCaseModel):
    auditor_elected: bool = Field(examples=[True])
    auditor_id: str = Field(examples=["recovery-1"])
    cluster_under_replicated: bool = Field(examples=[False])
    ledger_replication_enabled: bool = Field(examples=[True])
    total_bookies_count: int = Field(examples=[4])
    writable_bookies_count: int = Field(examples=[3])
    readonly_bookies_count: int = Field(examples=[1])
    unavailable_bookies_count: int = Field(examples=[0])


class EnsembleMember(BaseModel):
    id: str = Field(examples=["bk-2"])


class LedgerAsBookKeeper(CamelCaseModel):
    """The password is always empty; times are milliseconds since 1970."""

    ledger_id: int = Field(examples=[7])
    metadata_format_version: int = Field(examples=[3])
    ensemble_size: int = Field(examples=[3])
    write_quorum_size: int = Field(examples=[3])
    ack_quorum_size: int = Field(examples=[2])
    state: Literal["OPEN", "IN_RECOVERY", "CLOSED"] = Field(examples=["CLOSED"])
    length: int = Field(examples=[1_024_000])
    last_entry_id: int = Field(examples=[2_998])
    ctime: int = Field(examples=[1_795_219_200_000])
    digest_type: str | None = Field(examples=["CRC32C"])
    password: Literal[""] = Field(examples=[""])
    # Values are base64.
    custom_metadata: dict[str, str] = Field(examples=[{"application": "b3JkZXJz"}])
    closed: bool = Field(examples=[True])
    all_ensembles: dict[str, list[EnsembleMember]] = Field(
        examples=[{"0": [{"id": "bk-1"}, {"id": "bk-2"}, {"id": "bk-3"}]}]
    )  # Keys: the first entry of each fragment.
    ctoken: int = Field(examples=[0])


class ReplicationStatus(BaseModel):
    enabled: bool = Field(examples=[True])


class DelaySeconds(BaseModel):
    model_config = ConfigDict(extra="forbid")

    delay_seconds: StrictInt = Field(ge=0, le=2**31 - 1, examples=[300])


class BookiesToRecover(BaseModel):
    """`delete_cookie` must be false or left out."""

    model_config = ConfigDict(extra="forbid")

    bookie_src: list[str] = Field(min_length=1, max_length=1000, examples=[["bk-4"]])
    bookie_dest: list[str] = Field([], max_length=1000, examples=[[]])
    delete_cookie: Literal[False] = Field(False, examples=[False])


class BookieToDecommission(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bookie_src: str = Field(max_length=255, examples=["bk-4"])


def as_bookkeeper(
    admin: ClusterAdmin, managing: Managing, acts: BookieActs, looks: Sequence[Any]
) -> APIRouter:
    routes = APIRouter(tags=["as BookKeeper"])
    routes.include_router(_bookies(admin), dependencies=looks)
    routes.include_router(_ledgers(admin), dependencies=looks)
    routes.include_router(_autorecovery(admin), dependencies=looks)
    routes.include_router(_ledger_acts(admin, acts))
    routes.include_router(_autorecovery_acts(admin, managing))
    return routes


def _bookies(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter()

    @routes.get("/bookie/list_bookies", responses=describe_problems(*AWAY))
    async def list_bookies_as_bookkeeper(
        kind: Annotated[Literal["rw", "ro"], Query(alias="type")] = "rw",
        print_hostnames: Annotated[bool, Query()] = False,
    ) -> dict[str, str | None]:
        """The registered bookies of one kind, with their hosts if `print_hostnames` is true."""
        wanted = "writable" if kind == "rw" else "read-only"
        return {
            row["id"]: _host_of(row["address"]) if print_hostnames else None
            for row in await admin.bookies()
            if row["state"] == wanted
        }

    @routes.get("/bookie/list_bookie_info", responses=describe_problems(*AWAY))
    async def list_bookie_info() -> dict[str, str]:
        """The space of each bookie that responds, and of all of them together."""
        found = await admin.space()
        shown = {bookie: f": {{{_space_text(*space)}}}," for bookie, space in found.items()}
        free, total = (sum(space[part] for space in found.values()) for part in (0, 1))
        return {**shown, "ClusterInfo: ": f"{{{_space_text(free, total)}}}"}

    @routes.get("/bookie/cluster_info", responses=describe_problems(*AWAY))
    async def get_cluster_info() -> ClusterInfo:
        rows, recovery = await admin.bookies(), await admin.recovery()
        states = [row["state"] for row in rows]
        return ClusterInfo(
            auditor_elected=bool(recovery["auditor"]),
            auditor_id=recovery["auditor"] or "",
            cluster_under_replicated=recovery["ledgers_marked"] != 0,
            ledger_replication_enabled=recovery["autorecovery"] == "enabled",
            total_bookies_count=len(rows),
            writable_bookies_count=states.count("writable"),
            readonly_bookies_count=states.count("read-only"),
            unavailable_bookies_count=states.count("down"),
        )

    return routes


def _host_of(address: str | None) -> str | None:
    return address.rpartition(":")[0] if address else None


def _space_text(free: int, total: int) -> str:
    return f"Free: {free}{_readable(free)}, Total: {total}{_readable(total)}"


def _readable(count: int) -> str:
    """Formats a count like BookKeeper: three digits after the point, truncated."""
    power = min((len(str(count)) - 1) // 3, len(_UNITS) - 1)
    if not power:
        return ""
    whole, rest = divmod(count // 1000 ** (power - 1), 1000)
    digits = f"{whole}.{rest:03d}".rstrip("0").rstrip(".")
    return f"({digits}{_UNITS[power]})"


def _ledgers(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter()

    @routes.get("/ledger/list", responses=describe_problems(*AWAY))
    async def list_ledgers_as_bookkeeper(
        print_metadata: Annotated[bool, Query()] = False,
        page: _Page = 1,
        after: Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)] = -1,
    ) -> dict[str, str | None]:
        """The ids of ledgers, ascending, and their metadata if `print_metadata` is true. `after`: only ids above it."""
        limit = _WITH_METADATA if print_metadata else _WITHOUT
        rows: Sequence[Any] = ()
        next_after: int | None = after
        for _ in range(page):
            if next_after is None:
                return {}
            rows, next_after = await admin.ledgers(next_after, limit)
        return {
            str(row["ledger_id"]): json.dumps(dict(row)) if print_metadata else None for row in rows
        }

    @routes.get("/ledger/metadata", responses=describe_problems(NoSuchLedger, *AWAY))
    async def get_metadata_as_bookkeeper(ledger_id: _LedgerId) -> dict[str, LedgerAsBookKeeper]:
        found = await admin.ledger_as_bookkeeper(ledger_id)
        return {str(ledger_id): LedgerAsBookKeeper.model_validate(found)}

    return routes


def _ledger_acts(admin: ClusterAdmin, acts: BookieActs) -> APIRouter:
    routes = APIRouter()

    @routes.get("/ledger/read", responses=describe_problems(NoSuchLedger, EntryUnavailable, *AWAY))
    async def read_entries_as_bookkeeper(
        ledger_id: _LedgerId,
        start_entry_id: _EntryId = 0,
        end_entry_id: Annotated[int, Query(ge=-1, le=LEDGER_ID_MAX)] = -1,
        page: _Page | None = None,
    ) -> dict[str, str]:
        """The entries as ASCII text; each other byte is shown as U+FFFD."""
        first, last = start_entry_id, None if end_entry_id < 0 else end_entry_id
        if page is not None:
            begins = (page - 1) * _WITHOUT
            first = max(first, begins)
            last = min(begins + _WITHOUT - 1, LEDGER_ID_MAX if last is None else last)
        if last is not None and first > last:
            raise InvalidRequest(f"no entries from {first} to {last} on this page")
        with acts.act(Duty.REMOVE, "ReadEntries", ledger_id=ledger_id):
            found = await admin.entries(ledger_id, first, last)
        shown = {str(entry_id): data.decode("ascii", "replace") for entry_id, data in found.items()}
        return {"Entries for page: ": str(page), **shown} if page is not None else shown

    @routes.delete(
        "/ledger/delete",
        response_model=str,
        responses=_GOES_ON
        | describe_problems(NoSuchLedger, PartOfLog, RecoveryIncomplete, Overloaded, *ACTS),
    )
    async def delete_ledger_as_bookkeeper(ledger_id: _LedgerId) -> Any:
        done = await acts.change(
            Duty.REMOVE,
            "DeleteLedger",
            f"delete-{ledger_id}-False",
            lambda: admin.delete_ledger(ledger_id, force=False),
            ledger_id=ledger_id,
            force=False,
        )
        return begun_answer(done) or f"Deleted ledger: {ledger_id}"

    return routes


def _autorecovery(admin: ClusterAdmin) -> APIRouter:
    routes = APIRouter()

    @routes.get("/autorecovery/status", responses=describe_problems(*AWAY))
    async def get_replication_status() -> ReplicationStatus:
        return ReplicationStatus(enabled=(await admin.recovery())["autorecovery"] == "enabled")

    @routes.get(
        "/autorecovery/who_is_auditor",
        response_class=PlainTextResponse,
        responses=describe_problems(*AWAY),
    )
    async def who_is_auditor() -> str:
        """The auditor; empty while there is none."""
        auditor = (await admin.recovery())["auditor"]
        return f"Auditor: {auditor}" if auditor else ""

    @routes.get(
        "/autorecovery/lost_bookie_recovery_delay",
        response_class=PlainTextResponse,
        responses=describe_problems(*AWAY),
    )
    async def get_lost_bookie_delay() -> str:
        delay = str((await admin.recovery())["delay_s"]).partition(" ")[0]
        return f"lostBookieRecoveryDelay value: {delay}"

    @routes.get("/autorecovery/list_under_replicated_ledger", responses=describe_problems(*AWAY))
    async def list_under_replicated_ledger(
        missingreplica: _Bookie = "", excludingmissingreplica: _Bookie = ""
    ) -> list[int]:
        """The first thousand ledgers that are marked because they lack copies. `missingreplica` keeps those that lack a
        copy on this bookie, `excludingmissingreplica` drops them.
        """
        rows, _ = await admin.ledgers(-1, _WITHOUT, short=True)
        if not missingreplica and not excludingmissingreplica:
            return [row["ledger_id"] for row in rows]
        found = []
        for row in rows:
            missing = (await admin.ledger(row["ledger_id"]))["missing"]
            if missingreplica and missingreplica not in missing:
                continue
            if excludingmissingreplica and excludingmissingreplica in missing:
                continue
            found.append(row["ledger_id"])
        return found

    return routes


def _autorecovery_acts(admin: ClusterAdmin, managing: Managing) -> APIRouter:
    routes = APIRouter()
    begins = describe_problems(InvalidRequest, Overloaded, *ACTS)

    @routes.put("/autorecovery/status", responses=describe_problems(*ACTS))
    async def set_replication_status(enabled: Annotated[bool, Query()]) -> ReplicationStatus:
        with managing.act(Duty.OPERATE, "SetRecoverySwitch", enabled=enabled):
            await admin.set_switch(enabled=enabled)
        return ReplicationStatus(enabled=enabled)

    @routes.put(
        "/autorecovery/lost_bookie_recovery_delay",
        response_class=PlainTextResponse,
        responses=describe_problems(*ACTS),
    )
    async def set_lost_bookie_delay(wanted: DelaySeconds) -> str:
        with managing.act(Duty.OPERATE, "SetLostBookieDelay", delay_s=wanted.delay_seconds):
            await admin.set_delay(wanted.delay_seconds)
        return f"Success set lostBookieRecoveryDelay to {wanted.delay_seconds}"

    @routes.put(
        "/autorecovery/trigger_audit",
        response_class=PlainTextResponse,
        responses=describe_problems(*ACTS),
    )
    async def trigger_audit() -> str:
        with managing.act(Duty.OPERATE, "Audit", anyway=False):
            await admin.audit(anyway=False)
        return "Success trigger audit."

    @routes.put("/autorecovery/bookie", status_code=202, responses=begins)
    async def recover_bookie_as_bookkeeper(
        wanted: BookiesToRecover, response: Response
    ) -> ClusterOperation:
        about = {"bookies": wanted.bookie_src, "to": wanted.bookie_dest, "skip_open": False}
        return begun_at(response, await begin(admin, managing, "recover-bookies", about))

    @routes.put("/autorecovery/decommission", status_code=202, responses=begins)
    async def decommission_bookie(
        wanted: BookieToDecommission, response: Response
    ) -> ClusterOperation:
        about = {"bookies": [wanted.bookie_src], "to": [], "skip_open": False}
        return begun_at(response, await begin(admin, managing, "recover-bookies", about))

    return routes

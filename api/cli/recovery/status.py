"""The actions of `rollbook recovery status`, `ls` and `auditor`. They read only the metadata, so they also show
BookKeeper's processes.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rollbook.api.cli.cluster.actions import list_bookies, run_on_store
from rollbook.api.cli.metadata_option import Metadata
from rollbook.api.cli.output import show_facts, show_rows, tell_rows
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.underreplication_marks import Marks, MarkTree
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.ids import BookieId, LedgerId, parse_bookie_id
from rollbook.proto.ports import MetadataStore
from rollbook.recovery.check_times import CheckTimes
from rollbook.recovery.config import AuditConfig
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.core.repair_failures import Failure
from rollbook.recovery.drain_task_nodes import STEWARD, DrainTasks
from rollbook.recovery.process_status_nodes import PresenceNodes
from rollbook.recovery.repair_failure_nodes import Failures

# The most marks that `status` counts, because counting more would take long.
COUNT_MAX: Final = 10_000
DEFAULT_DELAY_S: Final = AuditConfig().lost_bookie_delay_s
# The id with which a command reads the votes. The command does not stand for election.
_ASKS: Final = parse_bookie_id("command")
_PART_COLUMNS: Final = ("process", "part", "state", "restarts", "last_error")
_CHECK_COLUMNS: Final = (
    "check",
    "is_running",
    "ledgers",
    "marked",
    "undecided",
    "unknown",
    "unreadable",
    "without_target",
    "differing",
)
_DOUBT_COLUMNS: Final = (
    "bookie",
    "is_running",
    "doubts_everything",
    "ledgers_done",
    "ledgers",
    "lost",
    "attempts",
    "last_error",
)
_COLUMNS: Final = ("ledger_id", "task", "bookies", "since", "locked_by", "attempts", "next_try")
_WIDE: Final = ("code", "message", "lost")


async def read_status(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
    marks, failures = Marks(store, cluster.root), Failures(store, cluster)
    times = CheckTimes(store, cluster, marks)
    failed = [
        failure
        async for ledger_id in _upto(failures.ids())
        if (failure := await _failure(failures, ledger_id)) is not None
    ]
    processes = await PresenceNodes(store, cluster).list()
    audit = next((each.audit for each in processes if each.audit), {})
    doubts: Mapping[str, Any] = next(
        (each.drains.get("doubts", {}) for each in processes if each.drains), {}
    )
    delay = await read_delay(marks)
    return {
        "autorecovery": "enabled" if await marks.is_enabled() else "paused",
        "auditor": await auditor_election(store, cluster).leader(),
        "steward": await _stewards(store, cluster).leader(),
        "delay_s": delay if delay is not None else f"{DEFAULT_DELAY_S} (not written yet)",
        "ledgers_marked": await _count(marks),
        "ledgers_to_drain": await _count(DrainTasks(store, cluster)),
        "ledgers_locked": len(await marks.locked()),
        "repairs_failed": len(failed),
        "ledgers_unrecoverable": sum(each.is_unrecoverable for each in failed),
        "bookies_missing": ", ".join(await missing_bookies(store, cluster)),
        "audit_braked": audit.get("is_braked"),
        "bookies_leaving": ", ".join(
            f"{each.bookie} ({each.lifecycle.state.value})"
            for each in await LifecycleNodes(store, cluster).list()
            if not each.lifecycle.takes_entries
        ),
        **{f"checked_{kind.value}": _as_time(await times.completed_ms(kind)) for kind in CheckKind},
        "checks": [
            {"check": check, **{name: state.get(name) for name in _CHECK_COLUMNS[1:]}}
            for check, state in audit.get("checks", {}).items()
        ],
        "bookies_in_doubt": [
            {"bookie": bookie, **{name: state.get(name) for name in _DOUBT_COLUMNS[1:]}}
            for bookie, state in sorted(doubts.items())
        ],
        "processes": [
            {"process": each.name, "part": part, **state}
            for each in processes
            for part, state in sorted(each.parts.items())
        ],
    }


def show_status(metadata: Metadata, output: str) -> None:
    facts = run_on_store(metadata.url, read_status)
    if output != "table":
        show_facts(facts, output)
        return
    tables = {
        _CHECK_COLUMNS: facts.pop("checks"),
        _DOUBT_COLUMNS: facts.pop("bookies_in_doubt"),
        _PART_COLUMNS: facts.pop("processes"),
    }
    show_facts(facts, output)
    for columns, rows in tables.items():
        if rows:
            show_rows(columns, rows, output)


async def read_tasks(
    store: MetadataStore, cluster: Cluster, *, failed: bool = False, limit: int | None = None
) -> list[dict[str, Any]]:
    marks, failures = Marks(store, cluster.root), Failures(store, cluster)
    rows: list[dict[str, Any]] = []
    for task, tree in (("repair", marks), ("drain", DrainTasks(store, cluster))):
        async for ledger_id in tree.ids():
            if limit is not None and len(rows) >= limit:
                return rows
            failure = await _failure(failures, ledger_id)
            if failure is None and failed:
                continue
            row = {
                "ledger_id": ledger_id,
                "task": task,
                "bookies": [],
                "since": None,
                "locked_by": await marks.holder(ledger_id),
                **_as_facts(failure),
            }
            try:
                if (found := await tree.read(ledger_id)) is None:
                    continue  # The task was done after it was listed.
                row["bookies"] = list(found.mark.missing)
                row["since"] = _as_time(found.mark.marked_ms)
            except BadMetadata as error:
                row["message"] = error.message
            rows.append(row)
    return rows


def list_tasks(metadata: Metadata, failed: bool, limit: int | None, output: str) -> None:
    async def look(store: MetadataStore, cluster: Cluster) -> list[dict[str, Any]]:
        return await read_tasks(store, cluster, failed=failed, limit=limit)

    rows = run_on_store(metadata.url, look)
    if output == "table":
        rows = [row | {"bookies": ", ".join(row["bookies"])} for row in rows]
    tell_rows(_COLUMNS, rows, output, "ledger_id", _WIDE)


def show_auditor(metadata: Metadata, output: str) -> None:
    async def look(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return {
            "auditor": await auditor_election(store, cluster).leader(),
            "steward": await _stewards(store, cluster).leader(),
        }

    show_facts(run_on_store(metadata.url, look), output)


def auditor_election(store: MetadataStore, cluster: Cluster) -> Election:
    folder = Marks(store, cluster.root).election_folder
    return Election(store, folder, _ASKS, above=cluster.root)


def _stewards(store: MetadataStore, cluster: Cluster) -> Election:
    return Election(store, f"{cluster.own_root}/{STEWARD}", _ASKS, above=cluster.own_root)


async def missing_bookies(store: MetadataStore, cluster: Cluster) -> list[BookieId]:
    """Returns the bookies with a cookie that are not registered, and the bookies that the auditor counts as
    missing.
    """
    missing = {row["id"] for row in await list_bookies(store, cluster) if row["state"] == "down"}
    for each in await PresenceNodes(store, cluster).list():
        missing.update(map(BookieId, each.audit.get("missing", ())))
    return sorted(missing)


async def read_delay(marks: Marks) -> int | None:
    found = await marks.delay()
    return found[0] if found else None


async def _upto(ids: AsyncIterator[LedgerId]) -> AsyncIterator[LedgerId]:
    left = COUNT_MAX
    async for ledger_id in ids:
        if not left:
            return
        left -= 1
        yield ledger_id


async def _count(tree: MarkTree) -> int | str:
    count = 0
    async for _ in tree.ids():
        if count == COUNT_MAX:
            return f"more than {COUNT_MAX}"
        count += 1
    return count


async def _failure(failures: Failures, ledger_id: LedgerId) -> Failure | None:
    try:
        return await failures.read(ledger_id)
    except (BadMetadata, UnsupportedVersion) as error:
        return Failure(code=error.code.reason, message=error.message)


def _as_facts(failure: Failure | None) -> dict[str, Any]:
    if failure is None:
        return dict.fromkeys(("next_try", *_WIDE)) | {"attempts": 0}
    return {
        "attempts": failure.attempts,
        "next_try": "never" if failure.next_try_ms is None else _as_time(failure.next_try_ms),
        "code": failure.code,
        "message": failure.message,
        "lost": [f"{loss.first_entry}-{loss.last_entry}" for loss in failure.losses],
    }


def _as_time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"

"""The actions of `rollbook recovery status`, `ls` and the switches. They use only the metadata, so the
switches also apply to BookKeeper's processes.
"""

import random
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rollbook.api.cli.cluster.actions import list_bookies, run_on_store
from rollbook.api.cli.metadata_option import Metadata
from rollbook.api.cli.output import show_facts, show_rows, tell, tell_rows
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.underreplication_marks import Marks, MarkTree
from rollbook.proto.errors import BadMetadata, InvalidRequest, UnsupportedVersion
from rollbook.proto.ids import BookieId, LedgerId, parse_bookie_id
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.audit_orders import AuditOrders, CheckTimes, RateOrder
from rollbook.recovery.config import AuditConfig, WorkerConfig
from rollbook.recovery.core.ledger_checks import CheckKind
from rollbook.recovery.core.repair_failures import Failure
from rollbook.recovery.process_status import PresenceNodes
from rollbook.recovery.repair_task_nodes import STEWARD, DrainTasks, Failures

# The most marks that `status` counts, because counting more would take long.
COUNT_MAX: Final = 10_000
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
    delay = await _delay(marks)
    return {
        "autorecovery": "enabled" if await marks.is_enabled() else "paused",
        "auditor": await _auditors(store, cluster).leader(),
        "steward": await _stewards(store, cluster).leader(),
        "delay_s": delay if delay is not None else f"{_DEFAULT_DELAY_S} (not written yet)",
        "ledgers_marked": await _count(marks),
        "ledgers_to_drain": await _count(DrainTasks(store, cluster)),
        "ledgers_locked": len(await marks.locked()),
        "repairs_failed": len(failed),
        "ledgers_unrecoverable": sum(each.is_unrecoverable for each in failed),
        "bookies_missing": ", ".join(await _missing(store, cluster)),
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


async def ask_for_audit(
    store: MetadataStore, cluster: Cluster, *, anyway: bool = False
) -> dict[str, Any]:
    """Requests an audit by writing the delay again, because BookKeeper's auditor reacts to that, too. Rollbook's
    auditor runs all its checks.
    """
    marks, orders = Marks(store, cluster.root), AuditOrders(store, cluster)
    missing = await _missing(store, cluster)
    token = f"{random.SystemRandom().getrandbits(128):032x}"
    now_ms = SystemClock().wall_us() // 1000
    await orders.ask_for_checks(now_ms, token, approved=missing if anyway else None)
    delay = await _delay(marks)
    await marks.set_delay(_DEFAULT_DELAY_S if delay is None else delay)
    return {
        "auditor": await _auditors(store, cluster).leader(),
        "bookies_missing": ", ".join(missing),
        "approved": anyway,
    }


def audit_now(metadata: Metadata, anyway: bool, output: str) -> None:
    async def ask(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return await ask_for_audit(store, cluster, anyway=anyway)

    show_facts(run_on_store(metadata.url, ask), output)


def show_auditor(metadata: Metadata, output: str) -> None:
    async def look(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return {
            "auditor": await _auditors(store, cluster).leader(),
            "steward": await _stewards(store, cluster).leader(),
        }

    show_facts(run_on_store(metadata.url, look), output)


async def turn_switch(store: MetadataStore, cluster: Cluster, *, enables: bool) -> None:
    marks = Marks(store, cluster.root)
    await (marks.enable() if enables else marks.disable())


def switch(metadata: Metadata, enables: bool) -> None:
    async def turn(store: MetadataStore, cluster: Cluster) -> None:
        await turn_switch(store, cluster, enables=enables)

    run_on_store(metadata.url, turn)


async def delay_of(
    store: MetadataStore, cluster: Cluster, seconds: int | None = None
) -> dict[str, Any]:
    """Returns the delay, after setting it to `seconds` if that is given."""
    marks = Marks(store, cluster.root)
    if seconds is not None:
        await marks.set_delay(seconds)
    found = await _delay(marks)
    return {"delay_s": _DEFAULT_DELAY_S if found is None else found}


def delay(metadata: Metadata, seconds: int | None, output: str) -> None:
    async def look(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return await delay_of(store, cluster, seconds)

    tell(run_on_store(metadata.url, look), output, "delay_s")


async def rate_of(
    store: MetadataStore, cluster: Cluster, bytes_per_s: int | None = None
) -> dict[str, Any]:
    """Returns the rate, after setting it to `bytes_per_s` if that is given; 0 is unlimited."""
    order = RateOrder(store, cluster)
    if bytes_per_s is not None:
        await order.write(bytes_per_s)
    found = await order.read()
    if found is None:
        found = WorkerConfig().bytes_per_s_max
    return {"bytes_per_s": found or _UNLIMITED}


def rate(metadata: Metadata, bytes_per_s: str | None, output: str) -> None:
    wanted = None if bytes_per_s is None else _rate_of(bytes_per_s)

    async def look(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return await rate_of(store, cluster, wanted)

    tell(run_on_store(metadata.url, look), output, "bytes_per_s")


def _rate_of(text: str) -> int:
    if text == _UNLIMITED:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise InvalidRequest(
            f"{text!r} is not a rate: use bytes per second, or {_UNLIMITED}",
            next_step="rollbook recovery rate 67108864",
        )
    return int(text)


# ----------------------------------------------------------------------------------------------

_UNLIMITED: Final = "unlimited"
_DIGITS: Final = 18
_DEFAULT_DELAY_S: Final = AuditConfig().lost_bookie_delay_s


def _auditors(store: MetadataStore, cluster: Cluster) -> Election:
    folder = Marks(store, cluster.root).election_folder
    return Election(store, folder, _ASKS, above=cluster.root)


def _stewards(store: MetadataStore, cluster: Cluster) -> Election:
    return Election(store, f"{cluster.own_root}/{STEWARD}", _ASKS, above=cluster.own_root)


async def _missing(store: MetadataStore, cluster: Cluster) -> list[BookieId]:
    """Returns the bookies with a cookie that are not registered, and the bookies that the auditor counts as
    missing.
    """
    missing = {row["id"] for row in await list_bookies(store, cluster) if row["state"] == "down"}
    for each in await PresenceNodes(store, cluster).list():
        missing.update(map(BookieId, each.audit.get("missing", ())))
    return sorted(missing)


async def _delay(marks: Marks) -> int | None:
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

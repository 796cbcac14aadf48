"""The actions that switch recovery: `rollbook recovery pause`, `resume`, `delay`, `rate` and `audit`. They write only
the metadata, so they also apply to BookKeeper's processes.
"""

import random
from typing import Any, Final

from rollbook.api.cli.cluster.actions import run_on_store
from rollbook.api.cli.metadata_option import Metadata
from rollbook.api.cli.output import show_facts, tell
from rollbook.api.cli.recovery.status import (
    DEFAULT_DELAY_S,
    auditor_election,
    missing_bookies,
    read_delay,
)
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.config import WorkerConfig
from rollbook.recovery.recovery_orders import AuditOrders, RateOrder

_UNLIMITED: Final = "unlimited"
_DIGITS: Final = 18


async def ask_for_audit(
    store: MetadataStore, cluster: Cluster, *, anyway: bool = False
) -> dict[str, Any]:
    """Requests an audit by writing the delay again, because BookKeeper's auditor reacts to that, too. Rollbook's
    auditor runs all its checks.
    """
    marks, orders = Marks(store, cluster.root), AuditOrders(store, cluster)
    missing = await missing_bookies(store, cluster)
    token = f"{random.SystemRandom().getrandbits(128):032x}"
    now_ms = SystemClock().wall_us() // 1000
    await orders.ask_for_checks(now_ms, token, approved=missing if anyway else None)
    delay = await read_delay(marks)
    await marks.set_delay(DEFAULT_DELAY_S if delay is None else delay)
    return {
        "auditor": await auditor_election(store, cluster).leader(),
        "bookies_missing": ", ".join(missing),
        "approved": anyway,
    }


def audit_now(metadata: Metadata, anyway: bool, output: str) -> None:
    async def ask(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        return await ask_for_audit(store, cluster, anyway=anyway)

    show_facts(run_on_store(metadata.url, ask), output)


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
    found = await read_delay(marks)
    return {"delay_s": DEFAULT_DELAY_S if found is None else found}


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

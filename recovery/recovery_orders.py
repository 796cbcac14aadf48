"""Stores in our own tree a person's requests to the auditor and the workers. Each class shows the form of its node."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

import structlog

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import put_surely, read_surely
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import MetadataStore, Watch

logger = structlog.get_logger()

AUDIT: Final = "audit"
RATE: Final = "rate"
_RATE_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class AuditOrder:
    approved: frozenset[BookieId] = frozenset()  # Bookies that may all be marked as lost together.
    checks_asked_ms: int | None = None  # The time when a person last requested all checks.


class AuditOrders:
    """A person's requests to the auditor for which BookKeeper's tree has no node.

    <own root>/audit    JSON `{"approved": ["b1:3181"], "checks_asked_ms": 17…, "token": "4e0c…", "version": 1}`
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.path = f"{cluster.own_root}/{AUDIT}"

    async def ask_for_checks(
        self, now_ms: int, token: str, *, approved: Collection[BookieId] | None = None
    ) -> None:
        """Request all kinds of checks. `approved` has the bookies whose loss is approved, and replaces
        earlier approvals.
        """
        order = replace(await self.read(), checks_asked_ms=now_ms)
        if approved is not None:
            order = replace(order, approved=frozenset(approved))
        await ensure_own_root(self._store, self._cluster)
        fields: dict[str, object] = {
            "version": 1,
            "approved": sorted(order.approved),
            "checks_asked_ms": order.checks_asked_ms,
            "token": token,
        }
        data = json.dumps(fields, sort_keys=True).encode("ascii")
        await put_surely(self._store, self.path, data)

    async def read(self) -> AuditOrder:
        """Return the present request. An unreadable request counts as none made."""
        node = await read_surely(self._store, self.path)
        if node is None:
            return AuditOrder()
        try:
            fields = json.loads(node.value)
            approved = frozenset(map(parse_bookie_id, fields["approved"]))
            asked_ms = fields.get("checks_asked_ms")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest):
            logger.warning("audit_order_unreadable", path=self.path)
            return AuditOrder()
        return AuditOrder(approved, asked_ms if type(asked_ms) is int else None)

    async def watch(self) -> Watch:
        return await self._store.watch(self.path)


class RateOrder:
    """The copy rate that a person has set for each worker. Running workers adopt a new rate at once.

    <own root>/rate    bytes a second in ASCII digits; 0 is unlimited
    """

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.path = f"{cluster.own_root}/{RATE}"

    async def write(self, bytes_per_s: int) -> None:
        await ensure_own_root(self._store, self._cluster)
        await put_surely(self._store, self.path, str(bytes_per_s).encode("ascii"))

    async def read(self) -> int | None:
        """Return the rate, or None if it is not set or cannot be read."""
        node = await read_surely(self._store, self.path)
        if node is None:
            return None
        if len(node.value) > _RATE_DIGITS_MAX or not node.value.isdigit():
            logger.warning("rate_unreadable", path=self.path)
            return None
        return int(node.value)

    async def watch(self) -> Watch:
        return await self._store.watch(self.path)

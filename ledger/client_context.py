"""The objects that the writers and recoveries of one client share."""

from dataclasses import dataclass

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.placement import Placement
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.ports import Clock, Randomness


@dataclass(frozen=True, slots=True)
class ClientContext:
    nodes: LedgerNodes
    bookies: Bookies
    placement: Placement
    health: Health
    clock: Clock
    randomness: Randomness
    config: ClientConfig

"""What all owners of a server share."""

from dataclasses import dataclass, field

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.producer_memory import ProducerMemory
from rollbook.logservice.ids import ServerInfo
from rollbook.logservice.log_metadata import LogNodes
from rollbook.logservice.stall_detector import Pulse
from rollbook.logservice.tail_cache import TailMemory
from rollbook.proto.ports import Clock, Randomness


@dataclass(frozen=True, slots=True)
class OwnerContext:
    server: ServerInfo
    ledgers: Ledgers
    nodes: LogNodes
    clock: Clock
    randomness: Randomness
    pulse: Pulse  # Started.
    tail_memory: TailMemory
    uses_reserve: bool = (
        False  # On full bookies: only for an owner that makes room, and accepts no appends.
    )
    producer_memory: ProducerMemory = field(default_factory=ProducerMemory)

"""The state that all owners of a server share."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.producer_memory import ProducerMemory
from rollbook.logservice.ids import ServerInfo
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.stall_detector import StallDetector
from rollbook.logservice.tail_cache import TailMemory
from rollbook.proto.ports import Clock, Randomness

_WIDENED_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class OwnerContext:
    server: ServerInfo
    ledgers: Ledgers
    nodes: LogMetadataStore
    clock: Clock
    randomness: Randomness
    stall_detector: StallDetector  # A started detector.
    tail_memory: TailMemory
    # True for an owner that makes room on full bookies, and accepts no appends.
    uses_reserve: bool = False
    producer_memory: ProducerMemory = field(default_factory=ProducerMemory)
    # Rolls to a full ensemble at the same time. Larger: logs are whole sooner; more of the metadata store is used.
    may_widen: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_WIDENED_MAX), repr=False, compare=False
    )

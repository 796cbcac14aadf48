"""The state that all owners of a server share."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.core.producer_memory_budget import ProducerMemory
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
    stall_detector: StallDetector  # It must be started.
    tail_memory: TailMemory
    # True for an owner that makes room on full bookies, and accepts no appends.
    uses_reserve: bool = False
    producer_memory: ProducerMemory = field(default_factory=ProducerMemory)
    # The most concurrent rolls to a full ensemble. Larger: degraded logs get a full ensemble sooner; the load on
    # the metadata store is higher.
    may_widen: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_WIDENED_MAX), repr=False, compare=False
    )

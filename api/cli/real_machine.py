"""A server's machine and log level. This module imports no code of bookies, so that a log server starts
faster.
"""

import random
from dataclasses import dataclass, field

from rollbook.proto.errors import BadConfig
from rollbook.proto.ports import Clock, Disk, Randomness, Transport
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.disk import SystemDisk
from rollbook.proto.runtime.logging_setup import LEVELS
from rollbook.proto.runtime.network import SocketTransport


@dataclass(frozen=True, slots=True)
class RealMachine:
    disk: Disk = field(default_factory=SystemDisk)
    transport: Transport = field(default_factory=SocketTransport)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=random.SystemRandom)


def check_log_level(level: str) -> None:
    if level not in LEVELS:
        raise BadConfig(f"log_level must be {', '.join(LEVELS)}", settings=("log_level",))

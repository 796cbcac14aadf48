"""A server's machine. This module imports no code of bookies, so that a log server starts faster."""

import random
from dataclasses import dataclass, field

from rollbook.proto.ports import Clock, Disk, Randomness, Transport
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.system_disk import SystemDisk


@dataclass(frozen=True, slots=True)
class RealMachine:
    disk: Disk = field(default_factory=SystemDisk)
    transport: Transport = field(default_factory=SocketTransport)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=random.SystemRandom)

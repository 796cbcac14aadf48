"""CPU time of this process for a ledger client, per entry of 100 B with three replicas.

All of the client is real: writer, rules, pool, connections, codec. Only sockets are replaced: three
fake bookies answer what was written outside the measured time, in groups of adds like a journal's
commits. So the kernel's part is missing: see `bench ledger` for clusters.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

import structlog

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.placement import Placement
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.formats.service_info import BookieServiceInfo, describe_bookie
from rollbook.proto.ids import FIRST_ENTRY, BookieId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import Address, Listener, ProtocolFactory, Randomness
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.bench import Figure, figure
from tests.unit.ledger.scripted_bookie import FixedWatcher

LEDGER: Final = LedgerId(4711)
PASSWORD: Final = b"secret"
ENTRIES: Final = 40_000
WARM_UP: Final = 5_000
PAYLOAD: Final = b"x" * 100


def figures(runs: int) -> list[Figure]:
    wanted = [
        ("V3, 200 entries a turn", 4.0, 3, Quorum(3, 3, 2), 200),
        ("V2, 200 entries a turn", 4.0, 2, Quorum(3, 3, 2), 200),
        ("V3, 20 entries a turn", None, 3, Quorum(3, 3, 2), 20),
        ("V3, striped over five", None, 3, Quorum(5, 3, 2), 200),
    ]
    found = [
        figure(f"append, {name}", "µs/entry", target, runs, _appending(version, quorum, at_once))
        for name, target, version, quorum, at_once in wanted
    ]
    many = _appending(3, Quorum(3, 3, 2), 200, by_many=True)
    return [*found, figure("append_many, V3, 200 entries", "µs/entry", None, runs, many)]


def _appending(
    version: int, quorum: Quorum, at_once: int, *, by_many: bool = False
) -> Callable[[], float]:
    def measure() -> float:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        return asyncio.run(_append(version, quorum, at_once, by_many))

    return measure


async def _append(version: int, quorum: Quorum, at_once: int, by_many: bool) -> float:
    network = Network()
    writer, bookies = _open_writer(network, version, quorum)
    while len(network.lines) < quorum.ensemble:
        await asyncio.sleep(0.001)
    spent = 0.0
    payloads = [PAYLOAD] * at_once
    for done in range(0, WARM_UP + ENTRIES, at_once):
        if done == WARM_UP:
            spent = 0.0
        started = time.process_time()
        if by_many:
            writer.append_many(payloads)
        else:
            for payload in payloads:
                writer.append(payload)
        await asyncio.sleep(0)
        spent += time.process_time() - started
        answers = [(line, line.answer()) for line in network.lines]
        started = time.process_time()
        for line, answer in answers:
            line.hear(answer)
        spent += time.process_time() - started
    await writer.close()
    assert writer.last_add_confirmed == WARM_UP + ENTRIES - 1
    await bookies.close()
    return spent / ENTRIES * 1e6


def _open_writer(network: "Network", version: int, quorum: Quorum) -> tuple[LedgerWriter, Bookies]:
    names = [BookieId(f"b{index}") for index in range(quorum.ensemble)]
    infos: dict[BookieId, BookieServiceInfo] = {
        each: describe_bookie(Address(each, 3181)) for each in names
    }
    health, randomness, clock = Health(), Randomness(1), SystemClock()
    config = ClientConfig(protocol_version=version)
    bookies = Bookies(network, FixedWatcher(infos), clock, randomness, config, health)
    metadata = LedgerMetadata(
        LEDGER, quorum, (Fragment(FIRST_ENTRY, tuple(names)),), created_ms=0, creation_token=1
    )
    writer = LedgerWriter(
        StoredLedger(metadata, 0, 0),
        LedgerDigest(DigestType.CRC32C, PASSWORD, LEDGER),
        PASSWORD,
        ClientContext(
            cast(LedgerNodes, _Nodes()),
            bookies,
            Placement(health, randomness),
            health,
            clock,
            randomness,
            config,
        ),
    )
    return writer, bookies


class _Nodes:
    async def update(self, stored: StoredLedger, metadata: LedgerMetadata) -> StoredLedger:
        return StoredLedger(metadata, stored.version + 1, 0)


class Network:
    """A `Transport` whose connections end in this process."""

    def __init__(self) -> None:
        self.lines: list[LoopbackTransport] = []

    async def listen(self, factory: ProtocolFactory, address: Address) -> Listener:
        raise NotImplementedError

    async def connect(
        self, factory: ProtocolFactory, address: Address, timeout_s: float
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        protocol = factory()
        line = LoopbackTransport(protocol)
        protocol.connection_made(line)
        self.lines.append(line)
        return line, protocol


class LoopbackTransport(asyncio.Transport):
    """`answer` computes the responses to the client's bytes, and `hear` delivers them."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self._protocol = protocol
        self._written: list[bytes] = []
        self._decoder = RequestDecoder()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written.append(bytes(data))

    def answer(self) -> bytes:
        written, self._written = b"".join(self._written), []
        heard = self._decoder.feed(written)
        return b"".join(
            group.pack_replies()
            for adds in heard
            if isinstance(adds, Adds)
            for group in adds.groups
        )

    def hear(self, data: bytes) -> None:
        buffer = self._protocol.get_buffer(-1)
        buffer[: len(data)] = data
        self._protocol.buffer_updated(len(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self._protocol.connection_lost(None)

    close = abort

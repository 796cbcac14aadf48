"""The benchmark of the bookie runs and produces its figures, at a minimal size."""

import socket
import threading
from collections.abc import Iterator
from math import isfinite

import pytest

from rollbook.proto.errors import BadFrame
from tests.bench import bookie
from tests.bench.load import generator
from tests.bench.load.generator import Stalled
from tests.bench.load.work import FrameBatch, add_batches, entry_bytes, read_batches
from tests.support import processes


@pytest.mark.parametrize(
    ("part", "units"),
    [
        ("where-it-goes", {"µs/add"}),
        ("alone", {"µs", "times"}),
        ("cached-reads", {"entries/s"}),
        ("cold-reads", {"MB/s", "times", "s/GB"}),
        ("cold-reads-held", {"MB/s", "times", "s/GB"}),
        ("compaction", {"ms", "times", "MB"}),
    ],
)
def test_figures_are_measured(part: str, units: set[str]) -> None:
    """Runs one part of each sort; the other parts use the same code with other requests."""
    figures = list(bookie.PARTS[part](1, bookie.SMALL))
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(isfinite(figure.value) for figure in figures)
    assert {figure.unit for figure in figures} == units


def test_unknown_part_error_lists_the_parts() -> None:
    with pytest.raises(SystemExit, match=r"no such part: 'nonsense'; there are\s+adds\n"):
        list(bookie.figures(1, bookie.SMALL, only=["alone", "nonsense"]))


def test_batches_have_the_requested_numbers_and_sizes() -> None:
    for version in (2, 3):
        batches = add_batches([1, 2, 3], 100, 50, 1_000, version=version)
        assert sum(batch.entries for batch in batches) == 100
        assert all(len(batch.frames) >= 1_000 for batch in batches[:-1])
    reads = read_batches(1, 25, 50, 10)
    assert [batch.entries for batch in reads] == [10, 10, 5]
    assert reads[0].reply_bytes == 10 * (28 + entry_bytes(50))


@pytest.fixture
def sink() -> Iterator[tuple[str, int]]:
    with processes.family() as family:
        frame, reply = add_batches([1], 1, 100, 1)[0].frames, 28
        line = family.start_module("tests.bench.load.sink", str(len(frame)), str(reply)).line()
        yield "127.0.0.1", int(line)


def test_generator_counts_replies_without_assuming_success(sink: tuple[str, int]) -> None:
    work = [add_batches([ledger], 1_000, 100, 5_000) for ledger in range(1, 4)]
    for interval_s in (0.0, 0.0001):
        result = generator.run(sink, work, window=2, interval_s=interval_s)
        assert result.entries == 3_000
        assert len(result.latencies_s) == sum(map(len, work))
        assert [len(replies) for replies in result.replies] == [28_000] * 3
    with pytest.raises(BadFrame):  # Zero bytes are not valid replies.
        assert result.successes


def test_generator_raises_when_the_server_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address: tuple[str, int] = listener.getsockname()

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.close()

        server = threading.Thread(target=hang_up)
        server.start()
        with pytest.raises((Stalled, ConnectionResetError)):
            generator.run(address, [add_batches([1], 10, 100, 1)], window=1)
        server.join()


def test_generator_wakes_for_a_short_response_after_a_long_one() -> None:
    """It stalled if the rest of a response was longer than the next response."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        batches = [FrameBatch(b"?", size, 1) for size in (300_000, 1_000)]
        stream = generator._Stream(ours, batches, window=1, interval_s=0)
        stream.send()
        for size, missing in ((130_000, 170_000), (130_000, 40_000), (40_000, 0)):
            theirs.sendall(bytes(size))
            stream.receive()
            if missing:
                assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == missing
        stream.send()
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) <= 1_000

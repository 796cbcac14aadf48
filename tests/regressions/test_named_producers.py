"""A program that crashed repeats its batches with the same numbers, and no batch is in the log
twice.
"""

from collections.abc import Iterator
from itertools import chain

import pytest

import rollbook
from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import DuplicateDiffers, DuplicateTooOld, Outcome
from tests.regressions.defects import defect
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

ID = b"spark/8a1f"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(tmp_path_factory.mktemp("named")) as found:
        found.start_server("log-1")
        yield found


@defect(
    "client-cannot-name-a-producer",
    "A program that repeated its batches after a crash could not name its producer: they were appended twice.",
)
def test_restarted_program_appends_no_batch_twice(cluster: LogProcesses) -> None:
    batches = [[b"%d.%d" % (batch, row) for row in range(3)] for batch in range(4)]
    for _ in range(2):  # Two runs of the program, with the same producer.
        with rollbook.connect(cluster.url) as client:
            log = client.open("sink", create=True)
            for seq, values in enumerate(batches):
                log.append_many(values, producer=ProducerRef(ID, 7, seq))
    with rollbook.connect(cluster.url) as client:
        log = client.open("sink")
        assert [record.value for record in log.read()] == [*chain(*batches)]
        with pytest.raises(DuplicateDiffers):  # The newest batch, with other bytes.
            log.append_many([b"x"] * 3, producer=ProducerRef(ID, 7, 3))
        with pytest.raises(DuplicateDiffers):  # An older one, with more records.
            log.append_many([b"x"] * 4, producer=ProducerRef(ID, 7, 1))
        ack = log.append_many([b"x"] * 3, producer=ProducerRef(ID, 7, 1))
        assert (ack.is_duplicate, ack.first_offset, ack.next_offset) == (True, 3, 6)
        (batch,) = log.read_batches(ack.first_offset, ack.next_offset)
        crcs = [
            Block(pack_block(values, producer=ProducerRef(ID, 7, 1))).crc
            for values in (batches[1], [b"x"] * 3)
        ]
        assert [batch.blocks[0].crc == crc for crc in crcs] == [True, False]


@defect(
    "client-cannot-append-a-framed-block",
    "A block framed by another process had to be unpacked to be appended.",
)
def test_framed_blocks_are_appended_and_deduplicated(cluster: LogProcesses) -> None:
    block = pack_block([b"a", b"b"], keys=[b"k", None], headers=[None, {"h": b"v"}])
    with rollbook.connect(cluster.url) as client:
        log = client.open("framed", create=True)
        for seq in range(70):
            log.append_block(block, producer=ProducerRef(ID, 0, seq))
        with pytest.raises(DuplicateTooOld) as old:  # The log remembers 64 batches of a producer.
            log.append_block(block, producer=ProducerRef(ID, 0, 3))
        assert old.value.outcome is Outcome.APPLIED
        assert log.append_block(block, producer=ProducerRef(ID, 0, 6)).first_offset == 12
        records = list(log.read(0, 2))
        assert [(each.value, each.key, dict(each.headers)) for each in records] == [
            (b"a", b"k", {}),
            (b"b", None, {"h": b"v"}),
        ]
        assert log.tail_offset() == 140

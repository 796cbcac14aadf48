"""The demo's check finds missing, duplicated and changed records. (CI runs the whole demo.)"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence

import pytest

from rollbook.api.cli.demo.checking_clients import BrokenPromise, check, make_records
from rollbook.api.client.reader import RecordBatch
from rollbook.logservice.core.record_block import pack_block, stamped
from rollbook.logservice.ids import Offset, OwnerEpoch, WriterEpoch

RECORDS = make_records(30)


async def told(*batches: tuple[int, Sequence[bytes]]) -> AsyncIterator[RecordBatch]:
    for base, values in batches:
        block = stamped(
            pack_block(values),
            base_offset=Offset(base),
            base_timestamp_us=1,
            owner_epoch=OwnerEpoch(1),
            writer_epoch=WriterEpoch(0),
        )
        yield RecordBatch([block], Offset(base), Offset(base + len(values)))


async def test_check_counts_correct_records() -> None:
    assert await check(told((0, RECORDS[:10]), (10, RECORDS[10:])), RECORDS) == 30
    assert await check(told((5, RECORDS[5:9])), RECORDS, 5) == 4


@pytest.mark.parametrize(
    "batches",
    [
        [(0, RECORDS[:10]), (11, RECORDS[11:])],
        [(0, RECORDS[:10]), (9, RECORDS[9:])],
        [(0, RECORDS[:10]), (10, RECORDS[9:])],
        [(0, [*RECORDS[:8], RECORDS[9], RECORDS[8]])],
        [(0, [*RECORDS[:8], bytes(100)])],
        [(0, [*RECORDS, RECORDS[0]])],
        [(1, RECORDS[1:])],
    ],
    ids=["a hole", "twice", "moved", "swapped", "changed", "one too many", "no beginning"],
)
async def test_wrong_records_raise_broken_promise(
    batches: list[tuple[int, list[bytes]]],
) -> None:
    with pytest.raises(BrokenPromise):
        await check(told(*batches), RECORDS)


def test_demo_child_exits_when_its_input_closes() -> None:
    """However the demo ends, its end of the pipe is closed."""
    code = (
        "import runpy, sys, time; import rollbook.api.cli.main as cli; cli.main = lambda: time.sleep(60)\n"
        "runpy.run_module('rollbook.api.cli.demo.child_main', run_name='__main__')"
    )
    read, write = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code], stdin=read)
    os.close(read)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1)
    os.close(write)
    assert child.wait(30) == 1

"""A full disk below a `sqlite://` metadata store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.ledger import Ledgers, connect
from rollbook.proto.errors import OutcomeUnknown, RollbookError, Unavailable
from tests.regressions.defects import defect
from tests.support import bookies, commands, forgetful
from tests.support.bookies import RunningBookie
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import family

_PATIENCE_S = 30.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    forgetful.require()
    with forgetful.mount(tmp_path / "disk") as mounted:
        yield mounted


async def _write(ledgers: Ledgers) -> int:
    async with await ledgers.create(ensemble=1, write=1, ack=1) as writer:
        await writer.append(b"an entry")
    return writer.ledger_id


async def _until_refused(ledgers: Ledgers, running: list[RunningBookie]) -> RollbookError:
    async with asyncio.timeout(_PATIENCE_S):
        while all(bookie.is_running for bookie in running):
            try:
                await _write(ledgers)
            except Unavailable as error:
                if error.code.reason != "NOT_ENOUGH_BOOKIES":
                    return error
            except OutcomeUnknown:
                pass  # The disk became full during this write.
    raise AssertionError("a bookie ended")


async def _until_taken(ledgers: Ledgers) -> int:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                return await _write(ledgers)
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(0.1)


@defect(
    "full-metadata-disk-ends-every-process",
    "A full disk below sqlite:// ended all processes of the cluster, one after the other.",
)
def test_full_metadata_disk_refuses_creates_and_stops_no_bookie(
    tmp_path: Path, disk: ForgetfulDisk
) -> None:
    """MS8."""
    url = f"sqlite://{disk.path}/metadata.db"
    assert commands.run("cluster", "init", "--metadata", url).returncode == 0

    async def story() -> None:
        async with connect(url) as ledgers:
            before = await _write(ledgers)
            disk.limit_free(0)
            refused = await _until_refused(ledgers, running)
            assert refused.code.reason == "METADATA_FULL"
            assert "make room" in str(refused)
            async with await ledgers.open(before) as reader:
                assert [entry.payload async for entry in reader.read()] == [b"an entry"]
            await ledgers.delete(before)  # Deleting works, so that space can be freed.
            disk.limit_free(None)
            await _until_taken(ledgers)

    with family() as children:
        running = [
            bookies.start(children, tmp_path / name, url, "--log-level", "error", bookie_id=name)
            for name in ("bk-1", "bk-2")
        ]
        for bookie in running:
            bookie.wait_ready()
        asyncio.run(story())
        assert all(bookie.is_running for bookie in running)

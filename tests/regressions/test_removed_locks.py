"""A bookie's directories stay locked when its lock files are removed."""

import asyncio
from pathlib import Path

from rollbook.ledger import connect
from tests.regressions.defects import defect
from tests.support import commands
from tests.support.ledger_cluster import ProcessCluster
from tests.support.processes import family


@defect(
    "removed-lock-file-lets-a-second-process-in",
    "A second process could open the directories of a running bookie after its lock files were removed.",
)
def test_directories_of_a_running_bookie_stay_locked_without_lock_files(
    tmp_path: Path,
) -> None:
    async def write(url: str) -> list[bytes]:
        async with connect(url) as ledgers:
            async with await ledgers.create(ensemble=1, write=1, ack=1) as writer:
                await writer.append(b"one")
            async with await ledgers.open(writer.ledger_id) as reader:
                return [entry.payload async for entry in reader.read()]

    with family() as children:
        cluster = ProcessCluster(children, tmp_path, names=("bk-1",))
        directories = (tmp_path / "bk-1/journal", tmp_path / "bk-1/ledgers1")
        for directory in directories:
            (directory / "lock").unlink()
        done = commands.run(
            "bookie",
            "write-off",
            "--yes",
            "--metadata",
            cluster.url,
            "--bookie-id",
            "bk-1",
            "--journal-dir",
            str(directories[0]),
            "--ledger-dir",
            str(directories[1]),
        )
        assert b"another process holds" in done.stderr, done.stderr.decode()
        assert done.returncode != 0
        assert asyncio.run(write(cluster.url)) == [b"one"]

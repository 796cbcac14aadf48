"""A metadata store is restored from a copy that is older than the data on the bookies."""

import asyncio
import shutil
from pathlib import Path

from rollbook.ledger import connect
from tests.regressions.defects import defect
from tests.support import bookies, commands
from tests.support.ledger_cluster import NAMES, ProcessCluster
from tests.support.processes import family

_REFUSED = 4


async def _write(url: str, payloads: list[bytes]) -> int:
    async with connect(url) as ledgers:
        async with await ledgers.create(ensemble=3, write=3, ack=2) as writer:
            for payload in payloads:
                await writer.append(payload)
        return writer.ledger_id


async def _read(url: str, ledger_id: int) -> list[bytes]:
    async with connect(url) as ledgers, await ledgers.open(ledger_id) as reader:
        return [entry.payload async for entry in reader.read()]


def _stop_all(cluster: ProcessCluster) -> None:
    for bookie in cluster.bookies.values():
        bookie.terminate()
    for bookie in cluster.bookies.values():
        assert bookie.wait() == 0


@defect(
    "restored-metadata-gives-ledger-ids-twice",
    "After the metadata store was put back from a copy, records that were acknowledged were lost.",
)
def test_ledger_ids_do_not_repeat_after_metadata_restore(tmp_path: Path) -> None:
    """B14, LI1."""
    with family() as children:
        cluster = ProcessCluster(children, tmp_path)
        before = asyncio.run(_write(cluster.url, [b"before the copy"]))
        _stop_all(cluster)
        shutil.copy(tmp_path / "metadata.db", tmp_path / "copy.db")
        for name in NAMES:
            cluster.start(name)
        since = asyncio.run(_write(cluster.url, [b"since", b"the copy"]))
        _stop_all(cluster)
        shutil.copy(tmp_path / "copy.db", tmp_path / "metadata.db")

        refused = commands.run(
            *bookies.arguments(tmp_path / NAMES[0], cluster.url, bookie_id=NAMES[0])
        )
        explained = refused.stderr.decode()
        assert refused.returncode == _REFUSED, explained
        assert "older copy" in explained
        remedy = f"rollbook cluster restored --metadata {cluster.url} --above {since}"
        assert remedy in explained

        done = commands.run(*remedy.split()[1:], "--yes")
        assert done.returncode == 0, done.stderr.decode()
        for name in NAMES:
            cluster.start(name)
        after = asyncio.run(_write(cluster.url, [b"after"]))
        assert after > since > before
        assert asyncio.run(_read(cluster.url, before)) == [b"before the copy"]
        assert asyncio.run(_read(cluster.url, after)) == [b"after"]

"""MK5: a worker may still hold the lock of a ledger after a release that failed."""

import asyncio
from pathlib import Path

import pytest

from rollbook.ledger.open_client import connect
from rollbook.proto.errors import MetadataUnavailable
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions.defects import defect
from tests.support.ledger_cluster import LocalCluster


@defect(
    "unreleased-lock-stops-the-repair",
    "A ledger was not repaired as long as a recovery server lived that could not release its lock once.",
)
def test_ledger_is_repaired_after_its_lock_was_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollbook.proto.cluster import underreplication_marks as marks_module
    from rollbook.recovery.config import WorkerConfig
    from rollbook.recovery.worker import Worker

    async def be_away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("away")

    async def repair() -> None:
        async with (
            LocalCluster(tmp_path) as cluster,
            connect(cluster.url) as ledgers,
            await open_metadata_store(cluster.url) as store,
        ):
            await ledgers.until_writable(3, 60)
            async with await ledgers.create(ensemble=2, write=2, ack=2) as writer:
                writer.append_many([b"entry"])
                await writer.flush()
            marks = marks_module.Marks(store, ledgers.cluster.root)
            await marks.prepare()
            lost = writer.metadata.fragments[0].ensemble[0]
            await cluster.stop(lost)
            while ledgers.live().find(lost):
                await asyncio.sleep(0.01)
            await marks.mark(writer.ledger_id, (lost,), 1)
            lock = await marks.take(writer.ledger_id, "here")
            assert lock is not None
            with monkeypatch.context() as away:
                away.setattr(marks_module, "delete_surely", be_away)
                with pytest.raises(MetadataUnavailable):
                    await marks.release(lock)
            worker = Worker(ledgers, store, SystemClock(), WorkerConfig(), name="here", marks=marks)
            await worker._prepare()
            await worker.work_once()
            assert not (await ledgers.metadata(writer.ledger_id, fresh=True)).metadata.names(lost)

    asyncio.run(repair())

import random
from collections.abc import AsyncIterator

import pytest

from rollbook.proto.cluster import uncertain_writes
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from tests.unit.proto.cluster.faulty import FaultyStore


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertain_writes, "_PAUSE_S", 0.0)


@pytest.fixture
async def service() -> AsyncIterator[MemoryService]:
    service = MemoryService(SystemClock(), random.Random(0))
    yield service
    await service.close()


@pytest.fixture
async def rival(service: MemoryService) -> AsyncIterator[MetadataStore]:
    """Another client of the same service."""
    async with await service.connect() as store:
        yield store


@pytest.fixture
async def store(service: MemoryService) -> AsyncIterator[FaultyStore]:
    async with FaultyStore(await service.connect()) as store:
        yield store

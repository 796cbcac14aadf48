import asyncio

import pytest

from rollbook.proto.errors import BadConfig, MetadataUnavailable
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store


async def test_memory_url_with_same_name_opens_same_store() -> None:
    async with (
        await open_metadata_store("memory:one") as first,
        await open_metadata_store("memory:one") as second,
        await open_metadata_store("memory:two") as other,
    ):
        await first.create("/a")
        assert await second.children("/") == ["a"]
        assert await other.children("/") == []
    async with await open_metadata_store("memory:one") as again:
        assert await again.children("/") == ["a"]


def test_memory_store_ends_with_its_loop() -> None:
    async def visit() -> list[str]:
        store: MetadataStore
        async with await open_metadata_store("memory:loops") as store:
            found = await store.children("/")
            await store.create("/a")
            return found

    assert [asyncio.run(visit()), asyncio.run(visit())] == [[], []]


async def test_invalid_url_is_refused() -> None:
    with pytest.raises(BadConfig):
        await open_metadata_store("sqlite://relative")


async def test_unreachable_store_error_names_timeout() -> None:
    """A command waits for less time than a server."""
    with pytest.raises(MetadataUnavailable, match=r"within 0\.2 s: .*refused"):
        await open_metadata_store("zk://127.0.0.1:1/ledgers", open_timeout_s=0.2)

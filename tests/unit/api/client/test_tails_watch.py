"""The client merges the tails of many logs from all servers."""

import asyncio
from collections.abc import Callable

import pytest

from rollbook.api.client.tails_watch import TailsWatch
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName
from rollbook.logservice.messages import TailOfLog
from rollbook.proto.errors import ClientClosed, InvalidRequest, QuorumTimeout, Unauthorized
from tests.unit.api.client.conftest import PATIENCE_S, Site

ONE, TWO = LogName("ns", "one"), LogName("ns", "two")


async def until(watch: TailsWatch, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await watch.next(1.0)


def ends(watch: TailsWatch) -> dict[LogName, int]:
    return {log: tail.tail for log, tail in watch.known.items()}


async def two_servers(site: Site) -> None:
    await site.start("b")
    site.cluster.make("ns/one").owner = site.cluster.addresses["a"]
    site.cluster.make("ns/two").owner = site.cluster.addresses["b"]
    site.cluster.make("other/log")


async def test_tails_of_all_servers_are_merged(site: Site) -> None:
    await two_servers(site)
    client = site.client("b")
    async with client.tails(prefix="ns/") as watch:
        assert set(await watch.ready()) == {ONE, TWO}
        first = await watch.next()
        assert first is not None
        assert {tail.log for tail in first.tails} == {ONE, TWO}
        assert first.is_complete
        await (await client.open("ns/two")).append(b"x")
        site.cluster.tell()
        news = await watch.next()
        assert news is not None
        assert [(tail.log, tail.tail) for tail in news.tails] == [(TWO, 1)]
        del site.cluster.logs[ONE]
        site.cluster.tell()
        await until(watch, lambda: ONE not in watch.known)
        assert await watch.next(0.01) is None
    async with client.tails(["ns/two", "ns/none"]) as watch:
        assert set(await watch.ready()) == {TWO}
    async with client.tails() as watch:
        assert len(await watch.ready()) == 2  # `ns/two` and `other/log`.


async def test_broken_stream_is_restarted_and_known_tails_stay(site: Site) -> None:
    await two_servers(site)
    async with site.client("a").tails(prefix="ns/") as watch:
        await watch.ready()
        address = site.cluster.addresses["b"]
        await site.stop("b")
        await until(watch, lambda: address in watch.unreached)
        assert set(watch.known) == {ONE, TWO}
        assert not watch.is_complete
        with pytest.raises(QuorumTimeout, match=address):
            await watch.ready(0.05)
        site.cluster.logs[TWO].append(pack_block([b"x"]), None)
        del site.cluster.addresses["b"]
        site.cluster.logs[TWO].owner = site.cluster.addresses["a"]
        site.cluster.tell()
        assert set(await watch.ready()) == {ONE, TWO}
        await until(watch, lambda: ends(watch) == {ONE: 0, TWO: 1})
        assert watch.unreached == {}


async def test_new_server_is_watched_too(site: Site) -> None:
    site.cluster.make("ns/one")
    async with site.client("a").tails(prefix="ns/") as watch:
        assert set(await watch.ready()) == {ONE}
        await site.start("b")
        site.cluster.make("ns/two").owner = site.cluster.addresses["b"]
        site.cluster.tell()
        await until(watch, lambda: TWO in watch.known)


async def test_permanent_error_ends_the_watch(site: Site) -> None:
    site.cores["a"].failures["watch_tails"].append(Unauthorized("no"))
    async with site.client("a").tails() as watch:
        with pytest.raises(Unauthorized):
            await watch.ready()
        with pytest.raises(Unauthorized):
            await watch.next()


async def test_watch_ends_when_it_or_its_client_is_closed(site: Site) -> None:
    client = site.client("a")
    first, second = client.tails(), client.tails()
    await second.ready()
    await first.aclose()
    assert [news async for news in first] == []
    waiting = asyncio.create_task(_drain(second))
    await client.close()
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    with pytest.raises(ClientClosed):
        client.tails()


async def test_invalid_log_names_and_prefixes_are_refused(site: Site) -> None:
    client = site.client("a")
    for wrong in ("NS/", "/x", "ns/a b"):
        with pytest.raises(InvalidRequest):
            client.tails(prefix=wrong)
    with pytest.raises(InvalidRequest):
        client.tails(["No"])


async def _drain(watch: TailsWatch) -> list[TailOfLog]:
    return [tail async for news in watch for tail in news.tails]

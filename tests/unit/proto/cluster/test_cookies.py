"""Cookies in the metadata store."""

from dataclasses import replace

import pytest

from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.errors import BadMetadata, MetadataConflict, NodeExists, NoSuchNode
from rollbook.proto.formats.cookie import Cookie
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import MetadataStore
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
B1, B2 = BookieId("b1:3181"), BookieId("b2:3181")
COOKIE = Cookie(B1, ("/journal",), ("/data",))


@pytest.fixture
async def cookies(store: FaultyStore) -> CookieNodes:
    await store.create(ROOT)
    return CookieNodes(store, ROOT)


async def test_cookie_is_created_updated_listed_and_deleted(cookies: CookieNodes) -> None:
    assert await cookies.read(B1) is None
    assert await cookies.list() == []
    stored = await cookies.create(COOKIE)  # Creates the folder, too.
    assert await cookies.read(B1) == stored
    larger = replace(COOKIE, ledger_dirs=("/data", "/data2"))
    updated = await cookies.update(stored, larger)
    assert await cookies.read(B1) == updated
    await cookies.create(replace(COOKIE, bookie_id=B2))
    assert await cookies.list() == [B1, B2]
    with pytest.raises(MetadataConflict):
        await cookies.update(stored, COOKIE)
    with pytest.raises(MetadataConflict):
        await cookies.delete(B1, version=0)
    await cookies.delete(B1, version=1)
    assert await cookies.list() == [B2]
    with pytest.raises(NoSuchNode):
        await cookies.delete(B1)


async def test_cookie_is_created_once_despite_lost_requests_and_replies(
    cookies: CookieNodes, store: FaultyStore
) -> None:
    """LR1."""
    await cookies.create(replace(COOKIE, bookie_id=B2))
    store.fates.extend((Fate.REQUEST_LOST, Fate.ANSWER_LOST))
    assert (await cookies.create(COOKIE)).version == 0


async def test_create_does_not_replace_another_bookies_cookie(
    cookies: CookieNodes, rival: MetadataStore
) -> None:
    theirs = replace(COOKIE, ledger_dirs=("/elsewhere",))
    await CookieNodes(rival, ROOT).create(theirs)
    with pytest.raises(NodeExists):
        await cookies.create(COOKIE)


async def test_second_bookie_of_a_name_gets_no_cookie_even_on_equal_directories(
    cookies: CookieNodes, rival: MetadataStore
) -> None:
    """The second bookie runs on another machine: its empty disks would deny entries that the first
    one stored.
    """
    await CookieNodes(rival, ROOT).create(COOKIE)
    with pytest.raises(NodeExists):
        await cookies.create(COOKIE)


async def test_list_of_cookies_skips_names_that_are_not_bookie_ids(
    cookies: CookieNodes, rival: MetadataStore
) -> None:
    await cookies.create(COOKIE)
    await rival.create(f"{ROOT}/cookies/readonly")
    await rival.create(f"{ROOT}/cookies/a,b")
    assert await cookies.list() == [B1]
    await rival.set(f"{ROOT}/cookies/{B1}", b"?")
    with pytest.raises(BadMetadata):
        await cookies.read(B1)

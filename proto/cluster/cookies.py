"""Which bookies belong to the cluster, and with which directories: their cookies' nodes."""

from dataclasses import dataclass

from rollbook.proto.cluster.lost_replies import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    read_surely,
    set_surely,
)
from rollbook.proto.errors import InvalidRequest, NoSuchNode
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.formats.paths import COOKIES
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import ANY_VERSION, MetadataStore


@dataclass(frozen=True, slots=True)
class StoredCookie:
    cookie: Cookie
    version: int


class CookieNodes:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._folder = f"{root}/{COOKIES}"

    async def read(self, bookie_id: BookieId) -> StoredCookie | None:
        node = await read_surely(self._store, self._path(bookie_id))
        return StoredCookie(unpack_cookie(node.value), node.stat.version) if node else None

    async def create(self, cookie: Cookie) -> StoredCookie:
        """Raises `NodeExists` if the bookie has one, be it equal: a second bookie of this name.

        After a lost reply its bytes alone tell whose it is: a bookie that stops here and starts
        again goes by them, too, since the same cookie lies in its directories by then.
        """
        data = pack_cookie(cookie)
        await ensure_node(self._store, self._folder)
        await create_surely(
            self._store,
            self._path(cookie.bookie_id),
            data,
            lambda node: node.value == data,
            only_if_lost=True,
        )
        return StoredCookie(cookie, 0)

    async def update(self, stored: StoredCookie, cookie: Cookie) -> StoredCookie:
        """Raises `MetadataConflict`, `NoSuchNode`."""
        assert cookie.bookie_id == stored.cookie.bookie_id
        path = self._path(cookie.bookie_id)
        version = await set_surely(self._store, path, pack_cookie(cookie), stored.version)
        return StoredCookie(cookie, version)

    async def delete(self, bookie_id: BookieId, version: int | None = ANY_VERSION) -> None:
        """Raises `MetadataConflict`, `NoSuchNode`."""
        await delete_surely(self._store, self._path(bookie_id), version)

    async def list(self) -> list[BookieId]:
        try:
            names = await children_surely(self._store, self._folder)
        except NoSuchNode:
            return []
        return [bookie_id for name in names if (bookie_id := _as_bookie_id(name)) is not None]

    def _path(self, bookie_id: BookieId) -> str:
        return f"{self._folder}/{bookie_id}"


def _as_bookie_id(name: str) -> BookieId | None:
    try:
        return parse_bookie_id(name)
    except InvalidRequest:
        return None  # Not made by a bookie.

"""The nodes that say which bookies belong to the cluster, and with which directories.

`CookieNodes` handles only the cookies, which BookKeeper's tools use, too. Rollbook's bookies use
`MemberNodes`, which handles the cookie and the record in our own tree. Both change in one
transaction. If a reply is lost, the random part of the record shows which process wrote it (LR1).
"""

from dataclasses import dataclass

from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    read_surely,
    set_surely,
    transact_surely,
)
from rollbook.proto.errors import BadMetadata, InvalidRequest, NoSuchNode
from rollbook.proto.formats.bookie_incarnation import (
    BookieRecord,
    pack_bookie_record,
    unpack_bookie_record,
)
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.formats.paths import COOKIES, OWN_BOOKIES
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import ANY_VERSION, Create, MetadataStore, Node, Op, Set


@dataclass(frozen=True, slots=True)
class VersionedCookie:
    cookie: Cookie
    version: int


class CookieNodes:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._folder = f"{root}/{COOKIES}"

    async def read(self, bookie_id: BookieId) -> VersionedCookie | None:
        node = await read_surely(self._store, self._path(bookie_id))
        return VersionedCookie(unpack_cookie(node.value), node.stat.version) if node else None

    async def create(self, cookie: Cookie) -> VersionedCookie:
        """Creates a cookie. Raises `NodeExists` if the bookie has a cookie, even
        an equal one, since that belongs to a second bookie with this id. After a lost reply, a
        cookie with our bytes counts as ours.
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
        return VersionedCookie(cookie, 0)

    async def update(self, stored: VersionedCookie, cookie: Cookie) -> VersionedCookie:
        """Raises `MetadataConflict`, `NoSuchNode`."""
        assert cookie.bookie_id == stored.cookie.bookie_id
        path = self._path(cookie.bookie_id)
        version = await set_surely(self._store, path, pack_cookie(cookie), stored.version)
        return VersionedCookie(cookie, version)

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


@dataclass(frozen=True, slots=True)
class Member:
    """The cookie and the record of one bookie, as read from the metadata store."""

    cookie_node: Node | None
    record_node: Node | None

    @property
    def cookie(self) -> Cookie | None:
        """The parsed cookie; None if it is missing or invalid."""
        try:
            return unpack_cookie(self.cookie_node.value) if self.cookie_node else None
        except BadMetadata:
            return None

    @property
    def record(self) -> BookieRecord | None:
        """The parsed record. Raises `BadMetadata` or `UnsupportedVersion`, since only Rollbook writes it."""
        return unpack_bookie_record(self.record_node.value) if self.record_node else None


class MemberNodes:
    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self._cookies = cluster.path(COOKIES)
        self._records = f"{cluster.own_root}/{OWN_BOOKIES}"

    async def read(self, bookie_id: BookieId) -> Member:
        return Member(
            await read_surely(self._store, f"{self._cookies}/{bookie_id}"),
            await read_surely(self._store, f"{self._records}/{bookie_id}"),
        )

    async def write(self, found: Member, cookie: Cookie, record: BookieRecord) -> None:
        """Writes both nodes if they are still in exactly the state that was read.

        Raises `NodeExists`, `MetadataConflict` or `NoSuchNode` if one of them has changed.
        """
        await ensure_own_root(self._store, self._cluster)
        for folder in (self._cookies, self._records):
            await ensure_node(self._store, folder)
        record_path = f"{self._records}/{cookie.bookie_id}"
        packed = pack_bookie_record(record)
        cookie_path = f"{self._cookies}/{cookie.bookie_id}"
        ops: tuple[Op, ...] = (
            _change(record_path, packed, found.record_node),
            _change(cookie_path, pack_cookie(cookie), found.cookie_node),
        )

        async def was_made() -> bool:
            """Returns whether this write took effect. No other process has drawn the same value."""
            node = await read_surely(self._store, record_path)
            if node is None or node.value != packed:
                return False
            version = found.record_node.stat.version if found.record_node else -1
            return node.stat.version == version + 1

        await transact_surely(self._store, ops, was_made)

    async def write_record(self, found: Member, bookie_id: BookieId, record: BookieRecord) -> None:
        """Writes only the record. Raises `MetadataConflict` or `NoSuchNode` if it has changed."""
        assert found.record_node
        version = found.record_node.stat.version
        path = f"{self._records}/{bookie_id}"
        await set_surely(self._store, path, pack_bookie_record(record), version)


def _change(path: str, value: bytes, found: Node | None) -> Op:
    return Set(path, value, found.stat.version) if found else Create(path, value)


def _as_bookie_id(name: str) -> BookieId | None:
    try:
        return parse_bookie_id(name)
    except InvalidRequest:
        return None  # No bookie created this node.

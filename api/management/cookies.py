"""Management of bookies' cookies over HTTP: an operator can list, read, write and delete them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rollbook.api.management.store_calls import StoreCalls
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.cookies import CookieNodes, VersionedCookie
from rollbook.proto.cluster.uncertain_writes import read_surely
from rollbook.proto.errors import BadMetadata, InvalidRequest, Missing
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.formats.paths import COOKIES
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.recovery.bookie_decommission import Departures

Facts = dict[str, Any]


class CookieManagement:
    def __init__(self, ledgers: Ledgers, calls: StoreCalls, departures: Departures) -> None:
        self._store = ledgers.store
        self._cluster = ledgers.cluster
        self._calls = calls
        self._departures = departures
        self._cookies = CookieNodes(ledgers.store, ledgers.cluster.root)

    async def list_all(self) -> list[Facts]:
        """Returns all cookies, sorted by bookie."""
        return await self._calls.look(self._list())

    async def _list(self) -> list[Facts]:
        found = []
        for bookie in sorted(await self._cookies.list()):
            with suppress(Missing):
                found.append(await self._read(bookie))
        return found

    async def read(self, name: str) -> Facts:
        """Raises `Missing`."""
        return await self._calls.look(self._read(parse_bookie_id(name)))

    async def _read(self, bookie: BookieId) -> Facts:
        node = await read_surely(self._store, f"{self._cluster.path(COOKIES)}/{bookie}")
        if node is None:
            raise Missing(
                f"bookie {bookie} has no cookie",
                bookie=bookie,
                next_step="send GET /api/v1/cookies to list the cookies",
            )
        text = node.value.decode("utf-8", "backslashreplace")
        return {"bookie": str(bookie), "text": text, "version": node.stat.version}

    async def put(self, name: str, text: str, version: int | None) -> Facts:
        """Stores a cookie. The cookie that it replaces must have this version; with None, the bookie must have no
        cookie yet. Raises `LifecycleConflict` while the bookie is in use.
        """
        bookie = parse_bookie_id(name)
        try:
            cookie = unpack_cookie(text.encode())
        except (BadMetadata, UnicodeEncodeError) as error:
            raise InvalidRequest(f"the text is not a cookie: {error}"[:200]) from None
        if cookie.bookie_id != bookie:
            raise InvalidRequest(
                f"the text is the cookie of bookie {cookie.bookie_id}", bookie=bookie
            )

        async def store() -> Facts:
            await self._departures.require_unused(bookie)
            if version is None:
                await self._cookies.create(cookie)
            else:
                await self._cookies.update(VersionedCookie(cookie, version), cookie)
            return await self._read(bookie)

        return await self._calls.walk(
            store(), f"send GET /api/v1/cookies/{bookie} to see the present cookie"
        )

    async def delete(self, name: str) -> Facts:
        """Deletes the bookie's cookie, and returns it. Raises `LifecycleConflict` while the bookie is in use, and
        `Missing` if it has no cookie.
        """
        bookie = parse_bookie_id(name)

        async def remove() -> Facts:
            found = await self._read(bookie)
            await self._departures.require_unused(bookie)
            await self._cookies.delete(bookie, found["version"])
            return found

        return await self._calls.walk(
            remove(), f"send GET /api/v1/cookies/{bookie} to see whether it exists"
        )

    async def generate(self, name: str, directories: Mapping[str, Sequence[str]]) -> Facts:
        """Returns the cookie that this bookie would write, without storing it."""
        cookie = Cookie(
            parse_bookie_id(name),
            journal_dirs=tuple(directories["journal_dirs"]),
            ledger_dirs=tuple(directories["ledger_dirs"]),
            index_dirs=tuple(directories["index_dirs"]),
            instance_id=self._cluster.instance_id,
        )
        try:
            text = pack_cookie(cookie).decode()
        except (UnicodeError, ValueError) as error:
            raise InvalidRequest(f"no cookie can have these directories: {error}"[:200]) from None
        return {"bookie": name, "text": text, "version": None}

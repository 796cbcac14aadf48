"""A named position of a log."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

from rollbook.logservice import messages
from rollbook.logservice.ids import CursorName, LogName, parse_offset
from rollbook.proto.errors import NoSuchCursor

D = TypeVar("D")
REQUIRED: Final[Any] = object()  # Marks parameters without a default.


class Cursor:
    """A cursor of a log. It holds only the cursor's name: each method asks the server, and most
    return the cursor's state (`messages.Cursor`)."""

    def __init__(
        self, ask: Callable[[Any], Awaitable[Any]], log: LogName, name: CursorName, uid: str = ""
    ) -> None:
        """`uid` is the uid of the log."""
        self.log = log
        self.name = name
        self._ask, self._uid = ask, uid

    def __repr__(self) -> str:
        return f"<Cursor {self.name} of {self.log}>"

    @overload
    async def get(self) -> messages.Cursor: ...
    @overload
    async def get(self, default: D) -> messages.Cursor | D: ...
    async def get(self, default: Any = REQUIRED) -> Any:
        """Returns the cursor. If it does not exist, returns `default`, or raises `NoSuchCursor`
        without a default."""
        try:
            return await self._ask(messages.GetCursor(self.log, self.name, self._uid))
        except NoSuchCursor:
            if default is REQUIRED:
                raise
            return default

    async def commit(
        self,
        offset: int,
        *,
        blob: bytes | None = None,
        protect: bool | None = None,
        version: int | None = None,
        may_rewind: bool = False,
    ) -> messages.Cursor:
        """Moves the cursor, or creates it. With `version`, it moves only if it still has this
        version; with -1, only if it does not exist. `protect` and `blob` stay as they were, unless
        given. With `may_rewind`, the cursor may also move back.

        Raises `MetadataConflict`, `CursorAhead`. If the call is cancelled, the cursor may or may
        not have moved: the version that `get` returns shows which.
        """
        request = messages.CommitCursor(
            self.log,
            self.name,
            parse_offset(offset),
            blob,
            protect,
            version,
            may_rewind,
            self._uid,
        )
        moved: messages.Cursor = await self._ask(request)
        return moved

    async def mark(
        self, offset: int, blob: bytes = b"", *, version: int | None = None
    ) -> messages.Cursor:
        """Commits `offset` with this `blob`, protected: records at `offset` and above are not
        truncated.

        If the call is cancelled, the cursor may or may not have moved.
        """
        return await self.commit(offset, blob=blob, protect=True, version=version)

    async def delete(self, *, version: int | None = None) -> None:
        """Deletes the cursor, which then no longer prevents truncation. `version` is that of
        `commit`.

        Raises `NoSuchCursor`, `MetadataConflict`. If the call is cancelled, the cursor may or may
        not still exist.
        """
        await self._ask(messages.DeleteCursor(self.log, self.name, version, self._uid))

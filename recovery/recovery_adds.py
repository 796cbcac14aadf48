"""Writes entries of one ledger to one bookie, exactly as another bookie has them.

The entries are sent as adds of a recovery. Adds of a recovery pass a fence, and a bookie that may have lost
everything accepts no other adds. An entry counts only when it is durable there (HL2).

Entries are urgent if a bookie gets its own entries back while clients wait for its answers: they are handled
before users' requests and may use the reserve of a full disk. Copies for a new member of an ensemble are not
urgent: users' requests come first, and a bookie without room refuses the copies.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from rollbook.ledger.bookie_pool import AddChannel, Bookies
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.recovery_writer import make_recovery_packer
from rollbook.proto.errors import BookieTimeout, Overloaded, RollbookError, Throttled
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.digest import Entry, LedgerDigest

_BUSY_PAUSE_S: Final = 0.05
_BUSY_S_MAX: Final = 60.0  # The number of seconds for which a request to a busy bookie is retried.
_LOSSES_MAX: Final = 3  # The maximum number of connections that may be lost in a row.


class Restorer:
    def __init__(
        self,
        bookie: BookieId,
        digest: LedgerDigest,
        ledger_key: bytes,
        bookies: Bookies,
        config: ClientConfig,
        *,
        is_urgent: bool = True,
        on_durable: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a writer to one bookie. The writer calls `on_durable` each time `unacked_bytes` has become
        smaller.
        """
        # The bytes of all frames that were sent and are not known to be durable.
        self.unacked_bytes = 0
        self._bookie = bookie
        self._packer = make_recovery_packer(
            bookies, ledger_key, digest, config, is_urgent=is_urgent
        )
        self._on_durable = on_durable
        self._deadline_s = config.add_deadline_s
        # The frames of entries that are not known to be durable.
        self._unacked: dict[EntryId, bytes] = {}
        self._refused: dict[EntryId, None] = {}
        self._news = asyncio.Event()
        self._error: RollbookError | None = None
        self._losses = 0
        self._ledger_id = digest.ledger_id
        self._channel = bookies.add_channel(
            bookie, digest.ledger_id, self, is_high_priority=is_urgent
        )

    async def put(self, entries: Sequence[Entry], unacked_bytes_max: int) -> None:
        """Send entries. Returns when at most this number of sent bytes are not durable yet.

        Raises the bookie's errors, or `BookieTimeout`. After a cancelled call, any of the entries may be
        durable.
        """
        frames = []
        for entry in entries:
            ids = entry.entry_id, entry.last_add_confirmed, entry.ledger_length
            frame = self._packer.pack(*ids, entry.payload)
            self._unacked[entry.entry_id] = frame
            self.unacked_bytes += len(frame)
            frames.append(frame)
        self._send(frames)
        await self._until(lambda: self.unacked_bytes <= unacked_bytes_max)

    async def flush(self) -> None:
        """Return when everything sent is durable. Raises the bookie's errors, or `BookieTimeout`."""
        await self._until(lambda: not self._unacked)

    async def until_done(self, reading: asyncio.Future[Any]) -> None:
        """Return when `reading` is done, or when everything sent is durable. Raises the bookie's errors, or
        `BookieTimeout`.

        The reader may wait for memory that is freed only when earlier entries are durable.
        """
        reading.add_done_callback(lambda _: self._news.set())
        await self._until(lambda: reading.done() or not self._unacked)

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        due_s, left = self._deadline_s, len(self._unacked)
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while self._error is None and not is_reached():
            try:
                async with asyncio.timeout_at(heard_at + due_s):
                    await self._news.wait()
            except TimeoutError:
                self._error = BookieTimeout(bookie=self._bookie, ledger_id=self._ledger_id)
                break
            self._news.clear()
            if len(self._unacked) < left:
                left, heard_at, due_s = len(self._unacked), loop.time(), self._deadline_s
            if self._refused:
                due_s = _BUSY_S_MAX
                await asyncio.sleep(_BUSY_PAUSE_S)
                refused, self._refused = self._refused, {}
                self._send([self._unacked[each] for each in refused if each in self._unacked])
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._channel.close()

    def _send(self, frames: list[bytes]) -> None:
        if frames and self._channel.is_open:
            self._channel.write(frames, len(frames))

    # --- Callbacks of the channel -------------------------------------------------------------

    def on_channel_open(self, channel: AddChannel) -> None:
        self._refused.clear()
        self._send(list(self._unacked.values()))

    def on_channel_lost(self, channel: AddChannel, error: RollbookError) -> None:
        self._losses += 1
        if self._losses >= _LOSSES_MAX:
            self._error = error
            self._news.set()

    def on_add_replies(self, channel: AddChannel, replies: AddReplies) -> None:
        if replies.error is None:
            self._losses = 0
            for entry_id in replies.entry_ids:
                if (frame := self._unacked.pop(entry_id, None)) is not None:
                    self.unacked_bytes -= len(frame)
            self._on_durable()
        elif issubclass(replies.error, Overloaded | Throttled):
            self._refused.update(dict.fromkeys(replies.entry_ids))
        else:
            self._error = replies.error(bookie=self._bookie, ledger_id=self._ledger_id)
        self._news.set()

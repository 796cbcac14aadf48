"""One ledger's adds to one bookie, and who hears of them."""

from collections.abc import Callable
from typing import Protocol

from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.wire.adds import AddReplies


class Carrier(Protocol):
    """The connection of a channel."""

    @property
    def unsent_bytes(self) -> int: ...

    def write_adds(
        self, channel: "AddChannel", frames: bytes | list[bytes], count: int
    ) -> None: ...

    def complain(self, waited_s: float) -> None: ...


class AddSink(Protocol):
    """Who adds to a ledger. None of these is called from within a call of the channel's own."""

    def on_add_replies(self, channel: "AddChannel", replies: AddReplies) -> None:
        """A whole batch, synchronously from where bytes are received. May name entries twice, or
        ones that were never sent, if the bookie is no good.
        """

    def on_channel_open(self, channel: "AddChannel") -> None:
        """(Again) connected: what was sent before and has no answer has to be sent again."""

    def on_channel_lost(self, channel: "AddChannel", error: RollbookError) -> None:
        """The connection was lost or could not be made. It is tried again, with growing pauses,
        until the channel is closed: this comes once for each failure.
        """


class AddChannel:
    """The adds of one ledger to one bookie, in the words of the client's protocol version.

    Frames are written in order and stay so as long as the connection lasts. No other channel hears
    their replies, not even a later one of the same ledger.
    """

    __slots__ = (
        "_client",
        "_on_close",
        "bookie",
        "is_closed",
        "is_high_priority",
        "ledger_id",
        "sink",
        "unanswered",
        "waiting_bytes",
    )

    def __init__(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        sink: AddSink,
        on_close: "Callable[[AddChannel], None]",
        *,
        is_high_priority: bool,
    ) -> None:
        self.bookie = bookie
        self.ledger_id = ledger_id
        self.sink = sink
        self.is_high_priority = is_high_priority
        self.is_closed = False
        self.unanswered = 0  # Adds written on the present connection, their replies not come.
        self.waiting_bytes = 0  # In its connection's queue.
        self._client: Carrier | None = None
        self._on_close = on_close

    @property
    def is_open(self) -> bool:
        """False until `on_channel_open`, and again from `on_channel_lost` on."""
        return self._client is not None

    @property
    def queued_bytes(self) -> int:
        """Handed over and not yet taken by the kernel.

        What lies in front of the socket counts for each of its ledgers: at most 512 KiB, and the
        rest of one frame.
        """
        client = self._client
        return 0 if client is None else self.waiting_bytes + client.unsent_bytes

    def write(self, frames: bytes | list[bytes], count: int) -> None:
        """`count` adds. Only while it is open. Takes whatever it is given: windows are the caller's."""
        assert self._client is not None
        self.unanswered += count
        self._client.write_adds(self, frames, count)

    def complain(self, waited_s: float) -> None:
        """The caller's deadline passed: an add has waited so long for its reply.

        If the bookie was silent all the while, its connection is closed for all channels and made again;
        then `on_channel_lost` follows.
        """
        if self._client is not None:
            self._client.complain(waited_s)

    def close(self) -> None:
        """Idempotent; no more replies are heard. What was written is sent all the same, as far as
        the connection lasts and 16 MiB of such remains do not wait already.
        """
        if not self.is_closed:
            self.is_closed = True
            self._on_close(self)

    # --- For its connection -------------------------------------------------------------------

    def on_open(self, client: Carrier) -> None:
        self._client = client
        self.unanswered = self.waiting_bytes = 0

    def on_lost(self) -> None:
        self._client = None


class WaitingAdds:
    """Frames of a channel that wait to be sent."""

    __slots__ = ("_frames", "channel", "count")

    def __init__(self, channel: AddChannel, frames: bytes, count: int) -> None:
        self.channel = channel
        self.count = count
        self._frames = frames

    @property
    def size(self) -> int:
        return len(self._frames)

    def take(self, _now: float) -> bytes:
        """To be sent now."""
        self.channel.waiting_bytes -= len(self._frames)
        return self._frames

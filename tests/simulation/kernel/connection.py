"""One end of a TCP connection, as asyncio sees it.

What an end writes is delayed by the link, arrives in order, waits in the other end's receive buffer
(which is a window: it fills) and is handed to the protocol there in pieces whose boundaries mean
nothing.

What TCP does and this does, too:
- A cut delays: bytes are sent again after it heals. Nothing is lost while both ends live.
- A process that dies, or closes with unread bytes before it, resets; else its end is a FIN.
- A machine that loses power says nothing. Its peers write into the void, until it is up again and
  resets what it does not know, or until keep-alive gives up (and never, if bytes are unanswered).
- A connection is made by the machine: a stopped process has not accepted it, yet it can be written
  to. It is there once the third message of the handshake has arrived.
- A reset loses what is in flight, in both directions, and each side learns of it at its own time.
"""

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rollbook.proto.ports import Buffer
from tests.simulation.kernel.loop import LANE

if TYPE_CHECKING:  # The network stands on this.
    from tests.simulation.kernel.network import Link, Network, SimulatedServer

Span: TypeAlias = tuple[float, float]

KEEPALIVE_S: Final[Span] = (10.0, 20.0)
GIVE_UP_S: Final = 900.0  # On unanswered bytes.
WINDOW_BYTES: Final = 256 * 1024
READ_BYTES_MAX: Final = 256 * 1024
HIGH_WATER_BYTES: Final = 64 * 1024
HELD: Final = float("inf")  # The arrival of what waits for a cut to heal.

# What travels beside bytes.
ACCEPT: Final = object()  # The last step of the handshake: there is a connection to accept.
FIN: Final = object()
RESET: Final = object()


class FakeSocket:
    """What `get_extra_info("socket")` gives: enough for code that sets options."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, name: tuple[str, int], peer: tuple[str, int]) -> None:
        self._name, self._peer = name, peer

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def setsockopt(self, *arguments: object) -> None:
        pass

    def getsockopt(self, *arguments: object) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class Endpoint(asyncio.Transport):
    """One end of a connection.

    `incoming` holds what the other end has sent and the protocol has not been given: pairs of arrival
    time and bytes, in order, the end of it perhaps still on its way. `unread` counts its bytes.
    """

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_context",
        "_has_sent_eof",
        "_high",
        "_is_buffered",
        "_is_closing",
        "_is_paused",
        "_is_protocol_paused",
        "_last_arrival",
        "_last_sent_at",
        "_low",
        "_network",
        "_protocol",
        "_wakes_at",
        "_wants_eof",
        "back",
        "host",
        "incoming",
        "is_gone",
        "is_whole",
        "name",
        "out",
        "peer",
        "server",
        "unread",
    )

    peer: "Endpoint"

    def __init__(
        self, network: "Network", context: Context, name: tuple[str, int], out: "Link", back: "Link"
    ) -> None:
        self._network = network
        self._context = context
        self._protocol: Any = None  # From `attach` on: asyncio.Protocol or BufferedProtocol.
        self.server: SimulatedServer | None = None  # At the end that accepts.
        self._is_buffered = False
        self.host = out.source
        self.name = name
        self.out, self.back = out, back
        self.incoming: deque[tuple[float, Any]] = deque()
        self.unread = 0
        self.is_whole = False  # What arrives is never split: its boundaries are nobody's business.
        self.is_gone = False  # Nobody is here any more: closed, or its process is dead.
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._wants_eof = False
        self._has_sent_eof = False
        self._is_closing = False
        self._is_paused = False
        self._is_protocol_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._last_arrival = 0.0  # Of what this end has sent.
        self._last_sent_at = -1.0
        self._wakes_at = -1.0

    # --- Life ---------------------------------------------------------------------------------

    @property
    def process(self) -> str:
        """Whose end it is: the name of its lane."""
        return self._context[LANE].name

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """From here on the protocol gets its callbacks; bytes may have come before."""
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if self.incoming:
            self._soon(self.on_arrival)

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        self._network.loop.call_soon(callback, *arguments, context=self._context)

    def _at(self, when: float, callback: Callable[..., object], *arguments: object) -> None:
        self._network.loop.call_at(when, callback, *arguments, context=self._context)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._backlog:
                self._soon(self._leave, None)

    def abort(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
        if not self.is_gone:
            self._is_closing = True
            self._soon(self._leave, None)

    def break_off(self, error: Exception) -> None:
        """The connection is no more, as the process now learns."""
        self._is_closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._leave(error)

    def _leave(self, error: Exception | None) -> None:
        if not self.is_gone:
            self.depart()
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def depart(self) -> None:
        """The socket is closed, by its process or because it died."""
        self.is_gone = self._is_closing = True
        peer = self.peer
        if not peer.is_gone:
            if self.unread:  # Nobody will read these, whether they are here or still coming.
                self.send_mark(RESET)
            else:
                self._send_eof()
        self.incoming.clear()
        self.unread = 0
        self._network.on_departed(self)

    def vanish(self) -> None:
        """Power was cut: the peer gets no event. What it sends now waits for the machine to come back."""
        self.is_gone = self._is_closing = True
        self._network.on_departed(self)

    def is_closing(self) -> bool:
        return self._is_closing

    # --- Writing ------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._wants_eof:
            raise RuntimeError("cannot write after write_eof()")
        if not data or self.is_gone or (self._is_closing and not self._backlog):
            return
        data = bytes(data)
        if not self._backlog:
            room = WINDOW_BYTES - self.peer.unread
            if len(data) <= room:
                self._send(data)
                return
            if room > 0:
                self._send(data[:room])
                data = data[room:]
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._backlog_bytes > self._high and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._wants_eof and not self._is_closing:
            self._wants_eof = True
            if not self._backlog:
                self._send_eof()

    def can_write_eof(self) -> bool:
        return True

    def _send_eof(self) -> None:
        if not self._has_sent_eof:
            self._has_sent_eof = True
            self.send_mark(FIN)

    def _send(self, data: bytes) -> None:
        network, peer, link = self._network, self.peer, self.out
        loop = network.loop
        now = loop.now
        peer.unread += len(data)
        if link.is_cut:
            peer.incoming.append((HELD, data))
            return
        if now == self._last_sent_at and not link.bytes_per_s:
            # One packet with what was written just before: its timer is set.
            peer.incoming.append((self._last_arrival, data))
            return
        departure = now
        if link.bytes_per_s:
            departure = link.free_at = max(now, link.free_at) + len(data) / link.bytes_per_s
        arrival = departure + link.draw_delay(network.chance)
        self._last_sent_at = now if network.chance.random() < network.merge_odds else -1.0
        if arrival <= self._last_arrival and not peer.is_gone:
            # It comes with what is before it: for that a timer is set.
            peer.incoming.append((self._last_arrival, data))
            return
        self._last_arrival = arrival
        peer.incoming.append((arrival, data))
        peer.expect(arrival)

    def send_mark(self, mark: object) -> None:
        """The end of the stream, or of the connection, after all that was sent."""
        network, peer, link = self._network, self.peer, self.out
        if link.is_cut:
            peer.incoming.append((HELD, mark))
            return
        arrival = network.loop.now + link.draw_delay(network.chance)
        self._last_arrival = arrival = max(arrival, self._last_arrival)
        self._last_sent_at = -1.0
        peer.incoming.append((arrival, mark))
        peer.expect(arrival)

    def expect(self, arrival: float) -> None:
        if not self.is_gone:
            self._at(arrival, self.on_arrival)
        elif self._network.is_up(self.host):
            self._network.loop.call_at(
                arrival, self.answer_for_nobody, context=self._network.loop.outside.context
            )

    def answer_for_nobody(self) -> None:
        """The machine got bytes for a connection that it does not know."""
        self.incoming.clear()
        self.unread = 0
        if not self.peer.is_gone:
            self.send_mark(RESET)

    def flush(self) -> None:
        """The window has opened, or a cut has healed."""
        self._wakes_at = -1.0
        if self.is_gone or self.back.is_cut:
            return  # Word of an open window does not come through a cut.
        while self._backlog and (room := WINDOW_BYTES - self.peer.unread) > 0:
            data = self._backlog.popleft()
            if len(data) > room:
                self._backlog.appendleft(data[room:])
                data = data[:room]
            self._backlog_bytes -= len(data)
            self._send(data)
        if self._is_protocol_paused and self._backlog_bytes <= self._low:
            self._is_protocol_paused = False
            self._protocol.resume_writing()
        if not self._backlog:
            if self._is_closing:
                self._leave(None)
            elif self._wants_eof:
                self._send_eof()

    def wake(self) -> None:
        """The other end has read: say so, unless that is already on its way."""
        now = self._network.loop.now
        if self._backlog and self._wakes_at < now and not self.is_gone:
            self._wakes_at = now + self.back.draw_delay(self._network.chance)
            self._at(self._wakes_at, self.flush)

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    # --- Reading ------------------------------------------------------------------------------

    def on_arrival(self) -> None:
        """Something may have come: hands the protocol what there is, in one piece or less."""
        incoming = self.incoming
        if self.is_gone or not incoming:
            return
        if self._protocol is None:
            self._on_handshake()
            return
        if self._is_closing or self._is_paused or self.back.is_stalled:
            if self.has_arrived(RESET):
                self.break_off(reset_error())
            return
        network = self._network
        now = network.loop.now
        arrival, data = incoming[0]
        if arrival > now:
            return
        if data is RESET:
            self.break_off(reset_error())
            return
        incoming.popleft()
        if data is FIN:
            if not self._protocol.eof_received():
                self.close()
            elif incoming:
                self._soon(self.on_arrival)  # A reset can follow.
            return
        if incoming and incoming[0][0] <= now:
            parts, size = [data], len(data)
            while incoming and size < READ_BYTES_MAX:
                arrival, data = incoming[0]
                if arrival > now or data is FIN or data is RESET:
                    break
                incoming.popleft()
                parts.append(data)
                size += len(data)
            data = b"".join(parts)
        size = len(data)
        odds = network.split_odds
        if odds and size > 1 and not self.is_whole and network.chance.random() < odds:
            size = _pick_split(network.chance, size)
            incoming.appendleft((now, data[size:]))
            data = data[:size]
        self.unread -= size
        self.peer.wake()
        if incoming and incoming[0][0] <= now:
            self._soon(self.on_arrival)
        if self._is_buffered:
            self._fill(data)
        else:
            self._protocol.data_received(data)

    def _on_handshake(self) -> None:
        arrival, mark = self.incoming[0]
        if arrival > self._network.loop.now or self.server is None:
            return  # A client's own protocol comes as soon as it has been answered.
        if mark is not ACCEPT:
            self.depart()  # The client gave up: nobody here ever knew of it.
            return
        self.incoming.popleft()
        if self.server.is_serving():
            self.attach(self.server.factory())
        else:
            self.send_mark(RESET)
            self.depart()

    def _fill(self, data: bytes) -> None:
        protocol = self._protocol
        while data:
            buffer = protocol.get_buffer(-1)
            size = min(len(buffer), len(data))
            if not size:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = data[:size]
            data = data[size:]
            protocol.buffer_updated(size)
            if data and (self._is_paused or self._is_closing or self._protocol is not protocol):
                self.incoming.appendleft((self._network.loop.now, data))
                self.unread += len(data)
                self._soon(self.on_arrival)
                return

    def has_arrived(self, mark: object) -> bool:
        now = self._network.loop.now
        return any(data is mark and arrival <= now for arrival, data in self.incoming)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._soon(self.on_arrival)

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    # --- Faults -------------------------------------------------------------------------------

    def hold(self) -> None:
        """The link to here is cut: what is on its way has to be sent again."""
        now = self._network.loop.now
        self.incoming = deque(
            (arrival if arrival <= now else HELD, data) for arrival, data in self.incoming
        )

    def release(self) -> None:
        """The cut has healed: what was held is sent again."""
        network = self._network
        if any(arrival == HELD for arrival, _ in self.incoming):
            wait = network.chance.uniform(0.0, 0.3)  # A retransmission timer backs off.
            arrival = network.loop.now + wait + self.back.draw_delay(network.chance)
            self.incoming = deque((min(came, arrival), data) for came, data in self.incoming)
            self.peer._last_arrival = max(arrival, self.peer._last_arrival)
            self.peer._last_sent_at = -1.0
            self.expect(arrival)
        if self._backlog and not self.is_gone:
            self._soon(self.flush)

    def lose_everything(self) -> None:
        """The connection is reset on its way: this side learns of it after a while."""
        network = self._network
        self.incoming.clear()
        self.unread = 0
        if not self.is_gone:
            arrival = network.loop.now + self.back.draw_delay(network.chance)
            self.incoming.append((arrival, RESET))
            self.expect(arrival)

    def watch_silence(self) -> None:
        """The way to the peer may be broken: keep-alive finds out."""
        if not self.is_gone:
            now = self._network.loop.now
            self._at(now + self._network.chance.uniform(*KEEPALIVE_S), self._on_silence, now, False)

    def _on_silence(self, since: float, has_waited: bool) -> None:
        network, peer = self._network, self.peer
        if self.is_gone:
            return
        if peer.is_gone and network.is_up(peer.host) and not self.out.is_cut:
            if not self.incoming:  # Else its FIN or reset is on its way.
                self.break_off(reset_error())
            return
        broken = (
            (self.out.is_cut and self.out.cut_at <= since)
            or (self.back.is_cut and self.back.cut_at <= since)
            or not network.is_up(peer.host)
        )
        if not broken:
            return
        if peer.unread and not has_waited:  # Unanswered: TCP goes on sending it, for long.
            self._at(network.loop.now + GIVE_UP_S, self._on_silence, since, True)
            return
        self.break_off(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    # --- The rest of asyncio.Transport -----------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert isinstance(self._protocol, asyncio.BaseProtocol)
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "peername":
                return self.peer.name
            case "sockname":
                return self.name
            case "socket":
                return FakeSocket(self.name, self.peer.name)
            case _:
                return default

    def __repr__(self) -> str:
        return f"<connection {self.name} to {self.peer.name}>"


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "connection reset by peer")


def _pick_split(chance: random.Random, size: int) -> int:
    """Where to break a piece in two: often within the first few bytes, where headers are."""
    return chance.randint(1, min(size - 1, 16) if chance.random() < 0.5 else size - 1)

"""What a run did, as a digest: two runs are the same iff their traces are.

Into the digest go which lane ran next, at each step; the virtual time, whenever it moves; and every
event that the world logs. With `keep_text` the same is kept as lines, to find where two runs part.
"""

from hashlib import blake2b
from struct import Struct
from typing import Any, Final

_PENDING_BYTES_MAX: Final = 1 << 16
_TIME: Final = Struct("<d")


class Trace:
    def __init__(self, *, keep_text: bool) -> None:
        self.lines: list[str] | None = [] if keep_text else None
        self.pending = bytearray()  # The loop appends the number of each lane it lets run.
        self._hash = blake2b(digest_size=16)
        self._final: str | None = None

    def on_time(self, now: float) -> None:
        self.pending += _TIME.pack(now)
        if len(self.pending) > _PENDING_BYTES_MAX:
            self._flush()

    def on_step(self, now: float, lane: str, callback: Any) -> None:
        """Only text: the digest has had the lane's number."""
        if self.lines is not None:
            self.lines.append(f"{now:.9f} {lane} {describe(callback)}")

    def on_event(self, now: float, lane: str, event: str, fields: dict[str, object]) -> None:
        if self._final is not None:
            return
        text = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
        self.pending += f"{lane} {text}\n".encode()
        if self.lines is not None:
            self.lines.append(f"{now:.9f} {lane} > {text}")

    def digest(self) -> str:
        if self._final is not None:
            return self._final
        self._flush()
        return self._hash.hexdigest()

    def close(self) -> None:
        """What follows is no part of the run."""
        self._final = self.digest()

    def _flush(self) -> None:
        self._hash.update(self.pending)
        self.pending.clear()


def describe(callback: Any) -> str:
    """A name without addresses: those differ from process to process."""
    subject = getattr(callback, "__self__", None)
    if (coroutine := getattr(subject, "get_coro", None)) is not None:
        return f"step of {getattr(coroutine(), '__qualname__', 'a task')}"
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    return str(name)

"""Calls of clients of a key-value store, with their responses."""

from dataclasses import dataclass

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Op:
    """A call on one key. Refused calls are not recorded: they have no effect."""

    client: str
    do: str  # "get", "put", "cas", "delete"
    key: str
    called_ns: int
    returned_ns: int = NEVER  # NEVER: the outcome is unknown.
    value: str | None = None  # The value to write.
    expect: str | None = None
    is_done: bool = True
    found: str | None = None  # The value before the call.

    @property
    def is_known(self) -> bool:
        return self.returned_ns != NEVER

    def after(self, state: str | None) -> str | None:
        """The value after the call."""
        if self.do == "get" or (self.do == "cas" and state != self.expect):
            return state
        return self.value

    def explains(self, state: str | None) -> bool:
        """Whether its response is possible if the key had this value."""
        if not self.is_known:
            return True
        is_done = self.do != "cas" or state == self.expect
        return self.found == state and self.is_done == is_done

    def __str__(self) -> str:
        told = f"{'' if self.is_done else 'not done, '}found {self.found}" if self.is_known else "?"
        span = (
            f"{self.called_ns / 1e6:.3f} … {self.returned_ns / 1e6:.3f}"
            if self.is_known
            else (f"{self.called_ns / 1e6:.3f} …")
        )
        expect = f" if {self.expect}" if self.do == "cas" else ""
        return f"{span} ms {self.client}: {self.do} {self.value or ''}{expect}: {told}"

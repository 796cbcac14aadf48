"""The rules for operations that outlive the process that began them: their states, their ids, and when they
are forgotten.

    Queued ──► Running ──► Done            the work ended; `result`
       │          ├──────► Failed          the work was refused or gave up; `problem`
       └──────────┴──────► Cancelled       a caller requested that, and its work has stopped

- Each operation ends once, and does not change afterwards (OP1).
- A caller's Idempotency-Key makes the id, so a repeated request finds its own operation. A different request
  under the same key is refused (OP2).
- Ended operations are kept for 7 days, and at most 1,000 operations are kept; an operation that has not ended
  is never removed (OP3).

Each operation has one node, which is JSON: the fields of `LastingOperation` and `version`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Any, Final

from rollbook.proto.errors import (
    BadMetadata,
    DuplicateDiffers,
    OperationEnded,
    UnsupportedVersion,
)
from rollbook.proto.formats.node_byte_checks import check_size

KEPT_MS: Final = 7 * 86_400_000
KEPT_MAX: Final = 1_000
KEY_CHARS_MAX: Final = 200
OUTCOME_BYTES_MAX: Final = 64 * 1024
_ID_DIGITS: Final = 32
_VERSION: Final = 1


class OperationStatus(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        return self in (OperationStatus.DONE, OperationStatus.FAILED, OperationStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class LastingOperation:
    id: str
    kind: str
    about: Mapping[str, Any]  # The request as JSON.
    principal: str
    created_ms: int
    state: OperationStatus = OperationStatus.QUEUED
    started_ms: int | None = None
    ended_ms: int | None = None
    done: int = 0
    total: int | None = None  # None: the total is not known yet.
    is_cancel_asked: bool = False
    notes: Mapping[str, Any] | None = None  # The facts that the work needs after a restart.
    result: Mapping[str, Any] | None = None
    problem: Mapping[str, Any] | None = None  # The error in the form of RFC 9457.

    # --- Steps --------------------------------------------------------------------------------

    def begun(self, now_ms: int) -> "LastingOperation":
        """Return the operation as running in the process that runs it now. If the operation was started
        before, it keeps its start time.
        """
        self._require_open()
        return replace(self, state=OperationStatus.RUNNING, started_ms=self.started_ms or now_ms)

    def with_progress(self, done: int, total: int | None) -> "LastingOperation":
        self._require_open()
        return replace(self, done=done, total=total)

    def with_notes(self, notes: Mapping[str, Any]) -> "LastingOperation":
        self._require_open()
        return replace(self, notes=notes)

    def cancel_asked(self, now_ms: int) -> "LastingOperation":
        """Return the operation with a request to cancel it. An operation that has not begun ends at once; a
        running one is stopped by its runner.
        """
        self._require_open()
        asked = replace(self, is_cancel_asked=True)
        return asked if self.state is OperationStatus.RUNNING else asked.cancelled(now_ms)

    def cancelled(self, now_ms: int) -> "LastingOperation":
        return self._ended(OperationStatus.CANCELLED, now_ms)

    def finished(self, now_ms: int, result: Mapping[str, Any]) -> "LastingOperation":
        done = self.done if self.total is None else self.total
        ended = self._ended(OperationStatus.DONE, now_ms)
        return replace(ended, done=done, result=_bounded(result))

    def failed(self, now_ms: int, problem: Mapping[str, Any]) -> "LastingOperation":
        return replace(self._ended(OperationStatus.FAILED, now_ms), problem=_bounded(problem))

    def _ended(self, state: OperationStatus, now_ms: int) -> "LastingOperation":
        """Return the operation with its final state. Raises `OperationEnded` if it has ended already (OP1)."""
        self._require_open()
        return replace(self, state=state, ended_ms=now_ms, notes=None)

    def _require_open(self) -> None:
        if self.state.has_ended:
            raise OperationEnded(
                f"operation {self.id} is {self.state.value}",
                operation=self.id,
                state=self.state.value,
                next_step="begin another one",
            )

    # --- Questions ----------------------------------------------------------------------------

    def eta_s(self, now_ms: int) -> int | None:
        """Return the remaining seconds at the present pace, or None if unknown."""
        if self.state is not OperationStatus.RUNNING or not self.done or not self.total:
            return None
        spent_ms = max(now_ms - (self.started_ms or now_ms), 0)
        return round(spent_ms * max(self.total - self.done, 0) / self.done / 1000)

    def require_same(self, kind: str, about: Mapping[str, Any]) -> None:
        """Check that a repeated key belongs to the same request (OP2). Raises `DuplicateDiffers`."""
        if (self.kind, _canonical(self.about)) != (kind, _canonical(about)):
            raise DuplicateDiffers(
                f"this Idempotency-Key belongs to operation {self.id}, whose request is different",
                operation=self.id,
                next_step="send the same request again, or use another key",
            )


def id_of_key(principal: str, key: str) -> str:
    """Return the operation id that an Idempotency-Key stands for. Equal keys from different principals make
    different ids.
    """
    scoped = f"{len(principal)} {principal} {key}".encode("utf-8", "surrogatepass")
    return sha256(scoped).hexdigest()[:_ID_DIGITS]


def is_operation_id(text: str) -> bool:
    return len(text) == _ID_DIGITS and all(each in "0123456789abcdef" for each in text)


def to_forget(known: Iterable[LastingOperation], now_ms: int, kept: int = KEPT_MAX) -> list[str]:
    """Return the ids of operations to forget (OP3): those that ended long ago, and the oldest ended ones if
    there are more than `kept`.
    """
    every = sorted(known, key=lambda each: (each.created_ms, each.id))
    ended = [each for each in every if each.state.has_ended]
    old = [each.id for each in ended if now_ms - (each.ended_ms or 0) >= KEPT_MS]
    too_many = max(len(every) - kept, 0)
    first = (each.id for each in ended[:too_many])
    return list(dict.fromkeys([*old, *first]))


def pack_operation(operation: LastingOperation) -> bytes:
    fields = {name: getattr(operation, name) for name in LastingOperation.__slots__}
    fields |= {"state": operation.state.value, "version": _VERSION}
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_operation(data: bytes) -> LastingOperation:
    """Return the operation in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        version = fields.pop("version")
        if version != _VERSION:
            raise UnsupportedVersion(f"an operation in a format of version {version!r:.20}")
        known = {name: fields[name] for name in LastingOperation.__slots__ if name in fields}
        operation = LastingOperation(**known | {"state": OperationStatus(fields["state"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadMetadata(f"not an operation: {data[:80]!r}") from None
    if not _has_types(operation):
        raise BadMetadata(f"not an operation: {data[:80]!r}")
    return operation


def _has_types(each: Any) -> bool:
    texts = each.id, each.kind, each.principal
    numbers = each.created_ms, each.done
    optional = each.started_ms, each.ended_ms, each.total
    mappings = each.notes, each.result, each.problem
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int for number in numbers)
        and all(number is None or type(number) is int for number in optional)
        and all(mapping is None or isinstance(mapping, dict) for mapping in mappings)
        and type(each.about) is dict
        and type(each.is_cancel_asked) is bool
        and each.state.has_ended == (each.ended_ms is not None)
    )


def _canonical(about: Mapping[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)


def _bounded(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome. If it might make the node too large for a metadata store, its lists and objects are
    left out, and its texts are cut.
    """
    if len(_canonical(outcome)) <= OUTCOME_BYTES_MAX:
        return dict(outcome)
    short = {name: each for name, each in outcome.items() if not isinstance(each, list | dict)}
    kept = {name: each[:1_000] if isinstance(each, str) else each for name, each in short.items()}
    return kept | {"shortened": True}

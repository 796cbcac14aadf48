"""Decides when a failed attempt is repeated, and when an append's outcome stays unknown.

If the error of an attempt does not prove that it was not applied, the **outcome** of its batches is
**unknown**: the log may have them. Such a batch is sent again under its old number, and the log
recognises it (LS6). No later error makes the outcome known; only an acknowledgement does.

    the error of the oldest batch                     what the writer does
    ------------------------------------------------  ----------------------------------------------------------
    the log has forgotten an unnamed producer, and    numbers all batches as a new epoch and sends them: nothing
    no batch's outcome is unknown                     is appended twice
    the error says that a retry cannot help           ends; the error is the result of the oldest batch, and
    the log has none of the later ones
    it may be retried, and the oldest batch is        ends; the outcomes of sent batches stay unknown
    unknown for longer than the log remembers it
    it may be retried                                 sends all batches again, from the oldest on

If the log has forgotten the producer, a repeated batch 0 is new to it, and would be appended twice.
Therefore a batch 0 with an unknown outcome is repeated only while the log surely remembers it
(`may_repeat`). When a writer ends, batches with an unknown outcome fail with that outcome, and all
others fail with outcome not applied.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from rollbook.proto.errors import (
    Outcome,
    OutcomeUnknown,
    OwnerFenced,
    ProducerGap,
    QuorumTimeout,
    RollbookError,
    ServerUnreachable,
)


class SentBatch(Protocol):
    """The fields of a batch that the rules use."""

    seq: int  # The batch's sequence number; an epoch begins with 0.
    first_sent_at: float
    may_be_applied: bool  # Whether an attempt may have taken effect.


class AfterError(Enum):
    BEGIN_EPOCH = auto()
    END = auto()  # Stop; the oldest batch gets the error.
    RETRY = auto()


def after_error(error: RollbookError, flight: Iterable[SentBatch], *, is_named: bool) -> AfterError:
    """Returns the reaction to an error of the oldest batch. `is_named` says that the log assigns
    the producer's epochs."""
    is_unknown = any(each.may_be_applied for each in flight)
    if not is_named and begins_epoch(error, is_unknown=is_unknown):
        return AfterError.BEGIN_EPOCH
    return AfterError.RETRY if may_retry(error) else AfterError.END


def note_failure(error: RollbookError, sent: Iterable[SentBatch]) -> None:
    """Marks the batches that the failed attempt may have appended."""
    if error.outcome is not Outcome.NOT_APPLIED:
        for each in sent:
            each.may_be_applied = True


def outlives_memory(oldest: SentBatch, again_s: float, memory_s: float) -> bool:
    """Returns whether the log may fail to recognise the oldest batch when it is sent again at
    `again_s`."""
    is_recognised = may_repeat(oldest.seq, oldest.first_sent_at, again_s, memory_s)
    return oldest.may_be_applied and not is_recognised


def results_at_end(
    error: RollbookError, flight: Sequence[SentBatch], *, is_refusal: bool
) -> list[RollbookError]:
    """Returns each batch's error when its writer ends. `is_refusal` says that the log refused the
    oldest batch with `error`."""
    found: list[RollbookError] = []
    for index, each in enumerate(flight):
        is_answer = is_refusal and index == 0
        result = again(error, error.outcome if is_answer else Outcome.NOT_APPLIED)
        found.append(as_unknown(result) if each.may_be_applied else result)
    return found


def outcome_at_end(flight: Iterable[SentBatch]) -> Outcome:
    """Returns the outcome of all of the writer's batches together."""
    is_unknown = any(each.may_be_applied for each in flight)
    return Outcome.UNKNOWN if is_unknown else Outcome.NOT_APPLIED


def may_retry(error: RollbookError) -> bool:
    """Returns whether to retry a request that may be repeated, such as a read, or an append with
    its producer."""
    return error.retryable or isinstance(error, OutcomeUnknown | OwnerFenced)


class RequestAttempts:
    """The attempts at one request. It may be repeated until `due_s`, but while no server has ever
    answered this client only until `connect_due_s`: then its address is probably wrong.

    Once an attempt may have taken effect, no later error proves the opposite, and the request fails
    with an unknown outcome.
    """

    def __init__(self, due_s: float, connect_due_s: float, *, is_change: bool) -> None:
        self._due_s, self._connect_due_s = due_s, connect_due_s
        self._is_change = is_change
        self.may_be_applied = False

    def note_failure(self, error: RollbookError) -> None:
        if self._is_change and error.outcome is Outcome.UNKNOWN:
            self.may_be_applied = True

    def may_continue(self, error: RollbookError, again_s: float, *, was_answered: bool) -> bool:
        """Returns whether to send the request again at `again_s`. `was_answered` says that a server
        has answered this client before."""
        is_first_contact = isinstance(error, ServerUnreachable) and not was_answered
        return may_retry(error) and again_s < (
            self._connect_due_s if is_first_contact else self._due_s
        )

    def result(self, error: RollbookError) -> RollbookError:
        """Returns the error with which the request fails."""
        return as_unknown(error) if self.may_be_applied else error


def shows_a_server(error: RollbookError) -> bool:
    """Returns whether an error came from a server. A time-out may also come from a dead address."""
    return not isinstance(error, ServerUnreachable | QuorumTimeout)


def is_forgotten(error: RollbookError) -> bool:
    """Returns whether the log does not know the producer, so that it accepts only batch 0."""
    return isinstance(error, ProducerGap) and error.ids.get("expected") == 0


def begins_epoch(error: RollbookError, *, is_unknown: bool) -> bool:
    """Returns whether a refusal needs a new epoch. `is_unknown` says that an attempt of the old
    epoch may have been appended."""
    return is_forgotten(error) and not is_unknown


def may_repeat(seq: int, first_sent_s: float, now_s: float, memory_s: float) -> bool:
    """Returns whether the log still recognises an attempt with an unknown outcome. Half the time
    for which the log remembers it is reserved for the request's way to the log."""
    return seq > 0 or now_s - first_sent_s < memory_s / 2


def as_unknown(error: RollbookError) -> RollbookError:
    """Returns the error with an unknown outcome, because an earlier attempt may have taken effect."""
    if error.outcome is Outcome.NOT_APPLIED:
        error.outcome = Outcome.UNKNOWN
        error.retryable = False
    return error


def again(error: RollbookError, outcome: Outcome) -> RollbookError:
    """Returns a copy of the error for another caller, because each raise adds a traceback of its
    own."""
    copy = error.copy()
    copy.outcome = outcome
    copy.retryable = error.retryable and outcome is Outcome.NOT_APPLIED
    return copy

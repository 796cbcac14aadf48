"""When a failed attempt is repeated, and when an append's outcome stays unknown.

An attempt whose error does not prove that it was not applied leaves the **outcome** of its batches **unknown**: the log may have them.
Such a batch is sent again under its old number, and the log recognises it (LS6). No later error makes the
outcome known; only an acknowledgement does.

    the error of the oldest batch                     what the writer does
    ------------------------------------------------  ----------------------------------------------------------
    the log has forgotten an unnamed producer, and    numbers all batches as a new epoch and sends them: nothing
    no batch's outcome is unknown                     is appended twice
    it says that a retry cannot help                  ends; the error is the result of the oldest batch, and
    the log has none of the later ones
    it may be retried, and the oldest batch is        ends; outcomes of what was sent stay unknown
    unknown for longer than the log remembers it
    it may be retried                                 sends all batches again, from the oldest on

To a log that has forgotten the producer a batch 0 that is repeated is new, and would be appended twice. So one
whose outcome is unknown is repeated only for as long as the log surely remembers it (`may_repeat`). When a writer ends,
such a batch fails with outcome unknown, every other one with outcome not applied.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from rollbook.proto.errors import (
    Outcome,
    OutcomeUnknown,
    OwnerFenced,
    ProducerGap,
    RollbookError,
)


class SentBatch(Protocol):
    """A batch's fields that the rules use."""

    seq: int  # The batch's sequence number; the first one of an epoch has 0.
    first_sent_at: float
    may_be_applied: bool  # An attempt may have taken effect.


class AfterError(Enum):
    BEGIN_EPOCH = auto()
    END = auto()  # Stop, with the error as the result of the oldest batch.
    RETRY = auto()


def after_error(error: RollbookError, flight: Iterable[SentBatch], *, is_named: bool) -> AfterError:
    """The reaction to an error of the oldest batch. `is_named`: the log assigns the producer's epochs."""
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
    """Whether the log may not recognise the oldest batch when it is sent again at `again_s`."""
    is_recognised = may_repeat(oldest.seq, oldest.first_sent_at, again_s, memory_s)
    return oldest.may_be_applied and not is_recognised


def results_at_end(
    error: RollbookError, flight: Sequence[SentBatch], *, is_refusal: bool
) -> list[RollbookError]:
    """Each batch's error when its writer ends. `is_refusal`: the log refused the oldest batch with `error`."""
    found: list[RollbookError] = []
    for index, each in enumerate(flight):
        is_answer = is_refusal and index == 0
        result = again(error, error.outcome if is_answer else Outcome.NOT_APPLIED)
        found.append(as_unknown(result) if each.may_be_applied else result)
    return found


def outcome_at_end(flight: Iterable[SentBatch]) -> Outcome:
    """The outcome of all of the writer's batches together."""
    is_unknown = any(each.may_be_applied for each in flight)
    return Outcome.UNKNOWN if is_unknown else Outcome.NOT_APPLIED


def may_retry(error: RollbookError) -> bool:
    """Whether to retry a request that may be repeated, such as a read, or an append with its producer."""
    return error.retryable or isinstance(error, OutcomeUnknown | OwnerFenced)


def is_forgotten(error: RollbookError) -> bool:
    """Whether the log does not know the producer, so that it accepts batch 0 only."""
    return isinstance(error, ProducerGap) and error.ids.get("expected") == 0


def begins_epoch(error: RollbookError, *, is_unknown: bool) -> bool:
    """Whether a refusal needs a new epoch. `is_unknown`: an attempt of the old one may have been appended."""
    return is_forgotten(error) and not is_unknown


def may_repeat(seq: int, first_sent_s: float, now_s: float, memory_s: float) -> bool:
    """Whether an attempt with an unknown outcome is still recognised. Half the log's memory is left for the way there."""
    return seq > 0 or now_s - first_sent_s < memory_s / 2


def as_unknown(error: RollbookError) -> RollbookError:
    """The error with an unknown outcome, since an earlier attempt may have taken effect."""
    if error.outcome is Outcome.NOT_APPLIED:
        error.outcome = Outcome.UNKNOWN
        error.retryable = False
    return error


def again(error: RollbookError, outcome: Outcome) -> RollbookError:
    """A copy of the error for another caller: each raise adds a traceback of its own."""
    copy = error.copy()
    copy.outcome = outcome
    copy.retryable = error.retryable and outcome is Outcome.NOT_APPLIED
    return copy

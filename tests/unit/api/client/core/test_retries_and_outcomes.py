"""When a failed append is retried, and its outcome in the end."""

import itertools
from dataclasses import dataclass

import pytest

from rollbook.api.client.core.retries_and_outcomes import (
    AfterError,
    RequestAttempts,
    after_error,
    note_failure,
    outcome_at_end,
    outlives_memory,
    results_at_end,
    shows_a_server,
)
from rollbook.proto.errors import (
    ConnectionLost,
    LogSealed,
    Outcome,
    Overloaded,
    ProducerGap,
    QuorumTimeout,
    RollbookError,
    ServerUnreachable,
)


@dataclass
class Sent:
    seq: int = 0
    first_sent_at: float = 100.0
    may_be_applied: bool = False


FORGOTTEN, GAP = ProducerGap(expected=0, got=7), ProducerGap(expected=5, got=7)


@pytest.mark.parametrize(
    ("error", "may_be_applied", "is_named", "expected"),
    [
        (FORGOTTEN, False, False, AfterError.BEGIN_EPOCH),
        (FORGOTTEN, True, False, AfterError.END),  # A batch may have been appended.
        (FORGOTTEN, False, True, AfterError.END),  # The log gives a named producer its epochs.
        (GAP, False, False, AfterError.END),
        (LogSealed(), False, False, AfterError.END),
        (Overloaded(), True, True, AfterError.RETRY),
        (ConnectionLost(), False, False, AfterError.RETRY),
    ],
)
def test_each_error_has_its_next_step(
    error: RollbookError, may_be_applied: bool, is_named: bool, expected: AfterError
) -> None:
    flight = [Sent(0), Sent(1, may_be_applied=may_be_applied)]
    assert after_error(error, flight, is_named=is_named) is expected


def test_only_a_refusal_leaves_no_doubt() -> None:
    refused, lost = Sent(), Sent()
    note_failure(Overloaded(), [refused])
    note_failure(ConnectionLost(), [lost])
    assert not refused.may_be_applied
    assert lost.may_be_applied
    note_failure(Overloaded(), [lost])
    assert lost.may_be_applied, "a later refusal does not remove the doubt"


@pytest.mark.parametrize(
    ("seq", "may_be_applied", "again_s", "expected"),
    [
        (0, True, 129.9, False),
        (0, True, 130.0, True),  # Half of the log's memory has passed.
        (0, False, 999.0, False),  # The batch was not appended.
        (1, True, 999.0, False),  # A log that has forgotten the producer refuses it.
    ],
)
def test_doubtful_batch_0_is_retried_only_while_the_log_remembers_it(
    seq: int, may_be_applied: bool, again_s: float, expected: bool
) -> None:
    assert outlives_memory(Sent(seq, 100.0, may_be_applied), again_s, memory_s=60.0) is expected


@pytest.mark.parametrize(
    ("error", "is_refusal", "doubtful", "outcomes"),
    [
        (LogSealed(), True, [False, False], [Outcome.NOT_APPLIED, Outcome.NOT_APPLIED]),
        (QuorumTimeout(), True, [False, False], [Outcome.UNKNOWN, Outcome.NOT_APPLIED]),
        (QuorumTimeout(), False, [False, False], [Outcome.NOT_APPLIED, Outcome.NOT_APPLIED]),
        (QuorumTimeout(), False, [True, False], [Outcome.UNKNOWN, Outcome.NOT_APPLIED]),
        (LogSealed(), True, [True, True], [Outcome.UNKNOWN, Outcome.UNKNOWN]),
    ],
)
def test_ended_writer_reports_the_outcome_of_each_batch(
    error: RollbookError, is_refusal: bool, doubtful: list[bool], outcomes: list[Outcome]
) -> None:
    flight = [Sent(seq, may_be_applied=each) for seq, each in enumerate(doubtful)]
    results = results_at_end(error, flight, is_refusal=is_refusal)
    assert [each.outcome for each in results] == outcomes
    assert not any(each.retryable for each in results if each.outcome is Outcome.UNKNOWN)
    expected = Outcome.UNKNOWN if any(doubtful) else Outcome.NOT_APPLIED
    assert outcome_at_end(flight) is expected


def test_doubtful_batch_is_never_reported_as_not_applied() -> None:
    """Holds for any errors in any order."""
    errors = (Overloaded(), ConnectionLost(), QuorumTimeout(), LogSealed())
    for series in itertools.product(errors, repeat=3):
        batch = Sent()
        for error in series[:-1]:
            note_failure(error, [batch])
        may_be_appended = any(error.outcome is not Outcome.NOT_APPLIED for error in series[:-1])
        (result,) = results_at_end(series[-1], [batch], is_refusal=True)
        if may_be_appended:
            assert result.outcome is Outcome.UNKNOWN


UNREACHABLE, TIMED_OUT, OVERLOADED = ServerUnreachable(), QuorumTimeout(), Overloaded()


@pytest.mark.parametrize(
    ("error", "again_s", "was_answered", "expected"),
    [
        (OVERLOADED, 29.9, False, True),
        (OVERLOADED, 30.0, True, False),  # The request's time is over.
        (UNREACHABLE, 4.9, False, True),
        (UNREACHABLE, 5.0, False, False),  # No server has ever answered.
        (UNREACHABLE, 29.9, True, True),  # An outage: servers have answered before.
        (TIMED_OUT, 29.9, False, True),
        (LogSealed(), 0.0, True, False),  # A retry cannot help.
    ],
)
def test_request_is_repeated_until_its_deadline(
    error: RollbookError, again_s: float, was_answered: bool, expected: bool
) -> None:
    attempts = RequestAttempts(30.0, 5.0, is_change=True)
    assert attempts.may_continue(error, again_s, was_answered=was_answered) is expected


def test_refusal_after_an_attempt_without_answer_has_an_unknown_outcome() -> None:
    change, read = (RequestAttempts(30.0, 5.0, is_change=each) for each in (True, False))
    for attempts in (change, read):
        assert attempts.result(LogSealed()).outcome is Outcome.NOT_APPLIED
        attempts.note_failure(ConnectionLost())
        attempts.note_failure(Overloaded())
    assert change.result(LogSealed()).outcome is Outcome.UNKNOWN
    assert read.result(LogSealed()).outcome is Outcome.NOT_APPLIED


def test_only_an_answer_shows_that_a_server_is_there() -> None:
    assert [shows_a_server(each) for each in (UNREACHABLE, TIMED_OUT, OVERLOADED)] == [
        False,
        False,
        True,
    ]

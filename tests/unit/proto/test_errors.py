"""E1: one table of errors: every class has a reason of its own and a place on every wire."""

import pytest

from rollbook.proto import errors
from rollbook.proto.errors import Outcome, RollbookError, every_error

FAMILIES = {f for f in RollbookError.__subclasses__() if f.__module__ == RollbookError.__module__}
# The names of google.rpc.Code, which gRPC shares; none may be invented.
GRPC_CODES = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
}
OURS = [e for e in every_error() if e.__module__ == errors.__name__]


def test_families_are_the_six_of_the_table() -> None:
    names = {family.__name__ for family in FAMILIES}
    assert names == {"Unavailable", "OutcomeUnknown", "Superseded", "Missing", "Corrupt", "Invalid"}


@pytest.mark.parametrize("error", OURS)
def test_every_class_says_what_happened_and_belongs_to_one_family(
    error: type[RollbookError],
) -> None:
    assert error.__doc__
    assert error.code.grpc in GRPC_CODES
    assert 300 <= error.code.http < 600
    if error is not RollbookError:
        assert len(FAMILIES & set(error.__mro__)) == 1


def test_reasons_tell_classes_apart() -> None:
    """`InvalidRequest` is its family said plainly; every other reason belongs to one class."""
    own = [error for error in OURS if "code" in vars(error)]
    reasons = [error.code.reason for error in own]
    assert sorted(reasons) == sorted(set(reasons))


@pytest.mark.parametrize("error", OURS)
def test_only_what_certainly_did_nothing_is_retryable_as_it_stands(
    error: type[RollbookError],
) -> None:
    if error.retryable:
        assert error.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("error", [error for error in OURS if "code" in vars(error)])
def test_a_reason_is_heard_back_as_what_was_said(error: type[RollbookError]) -> None:
    heard = errors.error_of_reason(error.code.reason)
    assert heard is error or (error is errors.Invalid and heard is errors.InvalidRequest)


def test_a_reason_nobody_has_heard_of_proves_nothing() -> None:
    assert errors.error_of_reason("NEWER_THAN_US")().outcome is Outcome.UNKNOWN


V2_CODES = {1: "NoSuchLedger", 2: "NoSuchEntry", 101: "BookieFailed", 102: "Unauthorized"} | {
    100: "InvalidRequest",
    103: "UnsupportedVersion",
    104: "LedgerFenced",
    105: "BookieReadOnly",
    106: "Overloaded",
}
V3_CODES = {402: "NoSuchLedger", 403: "NoSuchEntry", 404: "InvalidRequest", 501: "BookieFailed"} | {
    502: "Unauthorized",
    503: "UnsupportedVersion",
    504: "LedgerFenced",
    505: "BookieReadOnly",
    506: "Overloaded",
    507: "EntryStateUnknown",
}


def test_bookkeepers_codes_are_heard_and_said() -> None:
    assert {code: errors.error_of_v2(code).__name__ for code in V2_CODES} == V2_CODES
    assert {code: errors.error_of_v3(code).__name__ for code in V3_CODES} == V3_CODES
    for code in V2_CODES:
        assert errors.error_of_v2(code).code.v2 == code
    for code in V3_CODES:
        assert errors.error_of_v3(code).code.v3 == code
    assert errors.EntryStateUnknown.code.v2 == 101  # 107 makes a Java V2 client throw.


@pytest.mark.parametrize("code", [-1, 3, 107, 400, 2**31])
def test_a_code_nobody_knows_proves_nothing(code: int) -> None:
    """Above all it is not a negative that recovery could count."""
    assert errors.error_of_v2(code).outcome is Outcome.UNKNOWN
    assert errors.error_of_v3(code).outcome is Outcome.UNKNOWN


def test_an_error_tells_what_where_and_what_to_do() -> None:
    error = errors.NoSuchLedger(ledger=7, next_step="`rollbook ledger ls` lists them")
    assert str(error) == "There is no such ledger. · ledger=7 · `rollbook ledger ls` lists them"
    assert str(errors.BadFrame("too long")) == "too long"


def test_a_copy_knows_what_the_error_does() -> None:
    """Of the class or of this one; and what is done to one does not show in the other."""
    error = errors.NoSuchLedger("gone", ledger=7, next_step="look again")
    error.outcome, error.retryable = Outcome.APPLIED, True
    error.__cause__ = OSError("below")
    copy = error.copy()
    assert type(copy) is errors.NoSuchLedger
    assert str(copy) == str(error)
    assert repr(copy) == repr(error)
    assert (copy.outcome, copy.retryable) == (Outcome.APPLIED, True)
    assert copy.__cause__ is error.__cause__
    error.ids.clear()
    assert copy.ids == {"ledger": 7}
    assert errors.NoSuchLedger().copy().outcome is Outcome.NOT_APPLIED

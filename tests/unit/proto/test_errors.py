"""E1: one table of errors; every class has its own reason and a code for every protocol."""

import pytest

from rollbook.proto import errors
from rollbook.proto.errors import Outcome, RollbookError, every_error

FAMILIES = {f for f in RollbookError.__subclasses__() if f.__module__ == RollbookError.__module__}
# The names of google.rpc.Code, which gRPC shares; other names are invalid.
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


def test_there_are_six_families() -> None:
    names = {family.__name__ for family in FAMILIES}
    assert names == {"Unavailable", "OutcomeUnknown", "Superseded", "Missing", "Corrupt", "Invalid"}


@pytest.mark.parametrize("error", OURS)
def test_each_class_has_text_codes_and_one_family(
    error: type[RollbookError],
) -> None:
    assert error.__doc__
    assert error.code.grpc in GRPC_CODES
    assert 300 <= error.code.http < 600
    if error is not RollbookError:
        assert len(FAMILIES & set(error.__mro__)) == 1


def test_reasons_are_unique() -> None:
    """`InvalidRequest` shares the reason of its family; every other reason belongs to one class."""
    own = [error for error in OURS if "code" in vars(error)]
    reasons = [error.code.reason for error in own]
    assert sorted(reasons) == sorted(set(reasons))


@pytest.mark.parametrize("error", OURS)
def test_only_errors_without_effect_are_retryable(
    error: type[RollbookError],
) -> None:
    if error.retryable:
        assert error.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("error", [error for error in OURS if "code" in vars(error)])
def test_reason_maps_back_to_its_class(error: type[RollbookError]) -> None:
    heard = errors.error_of_reason(error.code.reason)
    assert heard is error or (error is errors.Invalid and heard is errors.InvalidRequest)


def test_unknown_reason_has_unknown_outcome() -> None:
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


def test_codes_of_bookkeeper_map_to_errors_and_back() -> None:
    assert {code: errors.error_of_v2(code).__name__ for code in V2_CODES} == V2_CODES
    assert {code: errors.error_of_v3(code).__name__ for code in V3_CODES} == V3_CODES
    for code in V2_CODES:
        assert errors.error_of_v2(code).code.v2 == code
    for code in V3_CODES:
        assert errors.error_of_v3(code).code.v3 == code
    assert errors.EntryStateUnknown.code.v2 == 101  # 107 makes a Java V2 client throw.


@pytest.mark.parametrize("code", [-1, 3, 107, 400, 2**31])
def test_unknown_code_has_unknown_outcome(code: int) -> None:
    """In particular, recovery must not count it as a missing entry."""
    assert errors.error_of_v2(code).outcome is Outcome.UNKNOWN
    assert errors.error_of_v3(code).outcome is Outcome.UNKNOWN


def test_error_text_has_message_ids_and_next_step() -> None:
    error = errors.NoSuchLedger(ledger=7, next_step="`rollbook ledger ls` lists them")
    assert str(error) == "There is no such ledger. · ledger=7 · `rollbook ledger ls` lists them"
    assert str(errors.BadFrame("too long")) == "too long"


def test_copy_of_error_is_equal_and_independent() -> None:
    """Attributes of the class and of the instance are copied."""
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

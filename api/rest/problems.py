"""Errors over HTTP: RFC 9457 problems, made from the one table in `proto/errors.py`.

type       urn:rollbook:problem:REASON     stable, like `reason`
title      what the class of error means
status     the HTTP status
detail     what happened this time
reason     the code that programs match: the same in gRPC, in Python and here
outcome    applied, not_applied or unknown: whether a change took effect
retryable  whether the same request may succeed later
retry_after_ms   the time before which a retry is useless, also as Retry-After in whole seconds
next_step  what the caller should do, if anything
ids        the ledger, the path, … to which it happened
fields     the invalid parts of the request, with the problem of each, if it could not be read
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rollbook.proto.errors import Outcome, RollbookError, retry_after_ms

MEDIA_TYPE: Final = "application/problem+json"
_TEXT_MAX: Final = 1000
_LIST_MAX: Final = 20

_SAFE_METHODS: Final = ("GET", "HEAD")


class Problem(BaseModel):
    """An error, as an RFC 9457 problem."""

    type: str = Field(examples=["urn:rollbook:problem:LEDGER_NOT_FOUND"])
    title: str = Field(examples=["There is no such ledger."])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no such ledger."])
    reason: str = Field(examples=["LEDGER_NOT_FOUND"])
    outcome: str = Field(examples=["not_applied"])
    retryable: bool = Field(examples=[False])
    retry_after_ms: int | None = Field(None, examples=[None])
    next_step: str | None = Field(None, examples=[None])
    ids: dict[str, Any] | None = Field(None, examples=[{"ledger_id": 7}])
    fields: list[dict[str, str]] | None = Field(None, examples=[None])


def problem_of(
    error: RollbookError,
    *,
    status: int | None = None,
    fields: Sequence[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """The problem as JSON values; fields without a value are left out."""
    title = (type(error).__doc__ or "").partition("\n")[0]
    code = type(error).code
    found = {
        "type": f"urn:rollbook:problem:{code.reason}",
        "title": title,
        "status": status or code.http,
        "detail": error.message or title,
        "reason": code.reason,
        "outcome": error.outcome.value,
        "retryable": error.retryable,
        "retry_after_ms": retry_after_ms(error) or None,
        "next_step": error.next_step or None,
        "ids": _plain(error.ids) or None,
        "fields": fields,
    }
    return {name: value for name, value in found.items() if value is not None}


def response_of(
    error: RollbookError,
    *,
    status: int | None = None,
    fields: Sequence[Mapping[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = problem_of(error, status=status, fields=fields)
    # Caches store even a 404 that has no headers.
    all_headers = {"cache-control": "no-store", **(headers or {})}
    if wait_ms := retry_after_ms(error):
        all_headers.setdefault("retry-after", str(-(-wait_ms // 1000)))
    return JSONResponse(problem, problem["status"], headers=all_headers, media_type=MEDIA_TYPE)


def _plain(value: Any) -> Any:
    """Converts a value to JSON's types, with a bounded length."""
    match value:
        case bool() | int() | float() | None:
            return value
        case bytes():
            return value[:_TEXT_MAX].hex()
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case tuple() | list():
            return [_plain(each) for each in value[:_LIST_MAX]]
    return str(value)[:_TEXT_MAX]


def describe_problems(*errors: type[RollbookError]) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the problems that an operation may respond with."""
    by_status: dict[int, list[type[RollbookError]]] = {}
    for error in errors:
        by_status.setdefault(error.code.http, []).append(error)
    return {status: describe_status(status, *same) for status, same in by_status.items()}


def describe_status(status: int, *errors: type[RollbookError]) -> dict[str, Any]:
    return {
        "description": ", ".join(error.code.reason for error in errors),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {
                    error.code.reason: {"value": problem_of(error(), status=status)}
                    for error in errors
                },
            }
        },
    }


def surprise(method: str = "", **where: Any) -> RollbookError:
    """The error that a client gets in place of an unexpected one. `method`: that of its request, if it waits for it."""
    error = RollbookError(next_step="read the server's log, then ask again", **where)
    if method in _SAFE_METHODS:
        error.outcome = Outcome.NOT_APPLIED
    return error

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

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from rollbook.api.rest.openapi_common_parts import complete, name_by_title
from rollbook.api.rest.unknown_parameters import DeclaredParameters
from rollbook.proto.errors import (
    EntryTooLarge,
    InvalidRequest,
    Missing,
    Outcome,
    Overloaded,
    RollbookError,
    Unauthorized,
    retry_after_ms,
)

logger = structlog.get_logger()

MEDIA_TYPE: Final = "application/problem+json"
_TEXT_MAX: Final = 1000
_LIST_MAX: Final = 20
_NOT_ALLOWED: Final = 405
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

_SAFE_METHODS: Final = ("GET", "HEAD")

# Errors that the framework reports only by a status.
_BY_STATUS: Final[dict[int, type[RollbookError]]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: Missing,
    413: EntryTooLarge,
    503: Overloaded,
}


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
    return {status: _described(status, *same) for status, same in by_status.items()}


def _described(status: int, *errors: type[RollbookError]) -> dict[str, Any]:
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


def new_app(
    title: str, description: str, version: str, open_paths: Collection[str] = ()
) -> FastAPI:
    """Makes an application that responds with problems, and has no pages that load scripts from elsewhere."""
    app = FastAPI(
        title=title,
        description=description,
        version=version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(DeclaredParameters(open_paths).check)],
        generate_unique_id_function=lambda route: route.name,
    )
    _add_problems(app, open_paths)
    return app


def _add_problems(app: FastAPI, open_paths: Collection[str]) -> None:
    """Makes every failure a problem, and adds problems to the OpenAPI document."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = described()
            name_by_title(document)
            _tell_of_problems(document)
            complete(document, open_paths, lambda error, status: _described(status, error))
        assert app.openapi_schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this way to replace the schema.
    app.add_exception_handler(RollbookError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(Exception, _on_surprise)


def _tell_of_problems(document: dict[str, Any]) -> None:
    """Replaces FastAPI's own response to unreadable requests."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema()
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for operations in document["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            if MEDIA_TYPE not in responses.get("422", {}).get("content", {}):
                responses.pop("422", None)  # FastAPI's default 422 response, not one of ours.
            responses["default"] = {
                "description": "A problem (RFC 9457).",
                "content": {MEDIA_TYPE: problem},
            }


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RollbookError)
    return response_of(error)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = error.status_code
    kind = _BY_STATUS.get(status, InvalidRequest if status < 500 else RollbookError)
    where = {"method": request.method, "path": request.url.path}
    headers = {"allow": _allowed(request)} if status == _NOT_ALLOWED else error.headers
    advice = ""
    if kind is Missing and ":" in request.url.path:
        advice = "names have no colon, since a colon starts a verb: /openapi.json lists the verbs"
    if kind is RollbookError:
        return response_of(surprise(request.method, **where), status=status, headers=headers)
    problem = kind(str(error.detail).lower(), next_step=advice, **where)
    return response_of(problem, status=status, headers=headers)


def _allowed(request: Request) -> str:
    """The methods of all routes of this path; the framework names those of one route only."""
    routes = request.app.routes
    return ", ".join(
        method
        for method in _METHODS
        if any(_takes(route, {**request.scope, "method": method}) for route in routes)
    )


def _takes(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is Match.FULL


async def _on_bad_request(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"field": ".".join(map(str, each["loc"])), "problem": str(each["msg"])}
        for each in error.errors()
    ]
    return response_of(InvalidRequest("the request cannot be read"), fields=fields[:20])


async def _on_surprise(request: Request, error: Exception) -> JSONResponse:
    """Logs an unexpected error, and does not show it to the client."""
    logger.error("http_request_failed", path=request.url.path, exc_info=error)
    return response_of(surprise(request.method))


def surprise(method: str = "", **where: Any) -> RollbookError:
    """The error that a client gets in place of an unexpected one. `method`: that of its request, if it waits for it."""
    error = RollbookError(next_step="read the server's log, then ask again", **where)
    if method in _SAFE_METHODS:
        error.outcome = Outcome.NOT_APPLIED
    return error

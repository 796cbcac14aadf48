"""Makes the FastAPI applications: they respond to every failure with a problem, and document problems in OpenAPI."""

from collections.abc import Collection
from typing import Any, Final

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from rollbook.api.rest.openapi_common_parts import complete, name_by_title
from rollbook.api.rest.problems import MEDIA_TYPE, Problem, describe_status, response_of, surprise
from rollbook.api.rest.unknown_parameters import DeclaredParameters
from rollbook.proto.errors import (
    EntryTooLarge,
    InvalidRequest,
    Missing,
    Overloaded,
    RollbookError,
    Unauthorized,
)

logger = structlog.get_logger()

_NOT_ALLOWED: Final = 405
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
# Errors that the framework reports only by a status.
_BY_STATUS: Final[dict[int, type[RollbookError]]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: Missing,
    413: EntryTooLarge,
    503: Overloaded,
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
            _describe_problems(document)
            complete(document, open_paths, lambda error, status: describe_status(status, error))
        assert app.openapi_schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this way to replace the schema.
    app.add_exception_handler(RollbookError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(Exception, _on_surprise)


def _describe_problems(document: dict[str, Any]) -> None:
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

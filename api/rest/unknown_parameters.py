"""Refuses unknown parameters instead of ignoring them, since an unknown parameter may be a misspelt condition.

query      every field is checked
headers    `Log-*` and `Producer-*` are checked; all others belong to HTTP, or to proxies in between

A route knows the parameters that it declares; `Log-Meta-*` stands for all names with that prefix. Probes
have no conditions, so their parameters are not checked.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from fastapi import Request
from fastapi.dependencies.models import Dependant

from rollbook.api.did_you_mean import SHOWN, did_you_mean
from rollbook.proto.errors import InvalidRequest

_OURS: Final = ("log-", "producer-")


class DeclaredParameters:
    """The declared parameters of an application's routes, except for its probes."""

    def __init__(self, probes: Collection[str]) -> None:
        self._probes = probes
        self._known: dict[Callable[..., Any], tuple[frozenset[str], frozenset[str]]] = {}

    async def check(self, request: Request) -> None:
        """Raises `InvalidRequest`."""
        if request.scope["route"].path in self._probes:
            return
        endpoint = request.scope["endpoint"]
        if (known := self._known.get(endpoint)) is None:
            known = self._known[endpoint] = _declared_by(request.scope["route"].dependant)
        fields, headers = known
        _refuse_strangers("query field", request.query_params, fields)
        ours = (name for name in request.headers if name.startswith(_OURS))
        _refuse_strangers("header", ours, headers)


def _declared_by(route: Dependant) -> tuple[frozenset[str], frozenset[str]]:
    """A route's query parameters and headers."""
    every = tuple(_all(route))
    fields = frozenset(field.alias for each in every for field in each.query_params)
    return fields, frozenset(field.alias for each in every for field in each.header_params)


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for each in dependant.dependencies:
        yield from _all(each)


def _refuse_strangers(what: str, said: Iterable[str], known: frozenset[str]) -> None:
    for name in said:
        if name in known or any(each[-1] == "*" and name.startswith(each[:-1]) for each in known):
            continue
        raise InvalidRequest(
            f"unknown {what} {name[:SHOWN]!r}",
            next_step=did_you_mean(name, known, "leave it out"),
        )

"""Reads the fields of a form, and checks the numbers and names in a request to a page."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from rollbook.proto.errors import InvalidRequest, NotConfirmed
from rollbook.proto.ids import LEDGER_ID_MAX

_FIELDS_MAX: Final = 20

# Handles a submitted form. Returns the path of the page to redirect to, and the message to show there.
DoAct = Callable[[Request, Mapping[str, str]], Awaitable[tuple[str, str]]]


async def fields_of(request: Request) -> dict[str, str]:
    """The fields of a form. The server has already limited the form's size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        return {}


def number_in(text: str, what: str, least: int, most: int = LEDGER_ID_MAX) -> int:
    digits = text.strip().removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(LEDGER_ID_MAX)):
        number = int(text)
        if least <= number <= most:
            return number
    raise InvalidRequest(
        f"{what} has to be a whole number from {least} to {most}, not {text[:40]!r}"
    )


def ledger_id_of(request: Request) -> int:
    return number_in(str(request.path_params["ledger_id"]), "a ledger's id", 0)


def require_typed(fields: Mapping[str, str], name: str) -> None:
    if fields.get("typed", "").strip() != name:
        raise NotConfirmed(f"type {name} to confirm it")


def unknown_act(verb: str) -> InvalidRequest:
    return InvalidRequest(f"unknown action {verb[:40]!r}")

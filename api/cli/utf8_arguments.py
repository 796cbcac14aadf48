"""Checks the arguments before a command runs: all except parts of records must be UTF-8."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from rollbook.api.cli.click_types import AnyBytes
from rollbook.proto.errors import InvalidRequest


def require_utf8(root: click.Command, words: Sequence[str]) -> None:
    """Raises `InvalidRequest`."""
    if not all(map(_is_utf8, words)):
        _require_utf8_in(click.Context(root, info_name=root.name), list(words))


def _require_utf8_in(context: click.Context, words: list[str]) -> None:
    command = context.command
    try:
        values, others, _ = command.make_parser(context).parse_args(words)
    except click.UsageError:
        return  # The command reports the usage error itself.
    for param in command.params:
        if isinstance(param.type, AnyBytes):
            continue
        for text in _texts_in(values.get(param.name or "")):
            if not _is_utf8(text):
                raise _not_utf8(param, text)
    if isinstance(command, click.Group) and others:
        name, *rest = others
        following = command.get_command(context, name)
        if following is not None:
            _require_utf8_in(click.Context(following, context, info_name=name), rest)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts_in(each)


def _is_utf8(text: str) -> bool:
    """Returns whether the argument is UTF-8. Python decodes all other bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_utf8(param: click.Parameter, text: str) -> InvalidRequest:
    """Returns an error that shows only one byte of the value, which may be a password."""
    is_option = isinstance(param, click.Option)
    name = max(param.opts, key=len) if is_option else param.human_readable_name.upper()
    start = next(at for at, each in enumerate(text) if "\udc80" <= each <= "\udcff")
    at = len(text[:start].encode())
    return InvalidRequest(
        f"{name} is not UTF-8: byte {at + 1} of it is 0x{ord(text[start]) - 0xDC00:02x}",
        next_step="give it as UTF-8; only parts of records may have other bytes: values, keys, headers",
    )

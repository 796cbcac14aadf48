"""Prints the bytes of records and entries, unchanged or as text, and shows progress bars.

This module imports only click, since most commands of logs load it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_SHARES: Final = 1000
_HEX: Final = "hex:"


def print_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@contextmanager
def bar(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal if the total is known; it is never part of the output."""
    hidden = not length or not sys.stderr.isatty()
    with click.progressbar(
        length=max(1, length), label=label, file=sys.stderr, hidden=hidden
    ) as progress:
        yield progress.update


@contextmanager
def bar_of_shares(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar for work that reports how much of a total is done."""
    with bar(label, _SHARES) as advance:
        shown = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal shown
            now = _SHARES * done // max(1, total)
            advance(now - shown)
            shown = now

        yield on_progress


def as_text(value: bytes) -> str:
    """Returns text if possible, otherwise `hex:` and hexadecimal. Text that begins with `hex:` is shown in
    hexadecimal, too.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{_HEX}{value.hex()}"
    if text.isprintable() and not text.startswith(_HEX):
        return text
    is_clear = text.strip() and not text.startswith(_HEX)
    return repr(text)[1:-1] if is_clear else f"{_HEX}{value.hex()}"

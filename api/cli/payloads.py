"""How commands show the bytes of records and entries, unchanged or as text, and their progress bars.

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
    """A progress bar on a terminal, never within the output, and not if the total is unknown."""
    hidden = not length or not sys.stderr.isatty()
    with click.progressbar(
        length=max(1, length), label=label, file=sys.stderr, hidden=hidden
    ) as progress:
        yield progress.update


@contextmanager
def bar_of_shares(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for work that reports how much is done, and of how much."""
    with bar(label, _SHARES) as advance:
        shown = 0

        def on_progress(done: int, total: int) -> None:
            nonlocal shown
            now = _SHARES * done // max(1, total)
            advance(now - shown)
            shown = now

        yield on_progress


def as_text(value: bytes) -> str:
    """Text if possible, otherwise hexadecimal after `hex:`, as is text that begins with `hex:`."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"{_HEX}{value.hex()}"
    if text.isprintable() and not text.startswith(_HEX):
        return text
    is_clear = text.strip() and not text.startswith(_HEX)
    return repr(text)[1:-1] if is_clear else f"{_HEX}{value.hex()}"

"""Shows progress bars on standard error while a command works.

This module imports only click, since most commands of logs load it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_SHARES: Final = 1000


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

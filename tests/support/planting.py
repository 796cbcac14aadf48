"""Planted flaws: product code is changed for as long as a context lasts, in this process only."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Patch = tuple[Any, str, Any]
"""An owner, the name of an attribute of it, what is there instead."""


@contextmanager
def planted(patches: Sequence[Patch]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, attribute, instead in patches:
            stack.enter_context(mock.patch.object(owner, attribute, instead))
        yield

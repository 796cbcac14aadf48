"""Plants bugs: patches product code within a context, in this process only."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Patch = tuple[Any, str, Any]
"""An object, the name of its attribute, and the replacement."""


@contextmanager
def planted(patches: Sequence[Patch]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, attribute, instead in patches:
            stack.enter_context(mock.patch.object(owner, attribute, instead))
        yield

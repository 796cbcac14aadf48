"""Commands that run in the process of a test say how its log is to be; the next test hears it anew."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()

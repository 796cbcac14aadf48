"""Commands that run in the process of a test say how its log is to be; the next test hears it anew."""

import io
from collections.abc import Iterator

import pytest
import structlog

from rollbook.proto.runtime.logs import level_now, set_level


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    level = level_now()
    yield
    set_level(level)
    structlog.reset_defaults()


@pytest.fixture
def log() -> io.StringIO:
    """For `configure_logs`: what capturing events does not show is whether they pass the level."""
    return io.StringIO()

"""What runs in the process of a test says how its log is to be; the next test gets a fresh one."""

from collections.abc import Iterator

import pytest
import structlog

from rollbook.proto.runtime.logging_setup import level_now, set_level


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    level = level_now()
    yield
    set_level(level)
    structlog.reset_defaults()

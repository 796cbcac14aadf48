"""Fixtures that several packages of the API share."""

import io

import pytest


@pytest.fixture
def log() -> io.StringIO:
    """A stream for `configure_logs`: captured events do not show whether they pass the level."""
    return io.StringIO()

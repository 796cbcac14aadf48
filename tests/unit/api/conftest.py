"""What several of the faces need."""

import io

import pytest


@pytest.fixture
def log() -> io.StringIO:
    """For `configure_logs`: what capturing events does not show is whether they pass the level."""
    return io.StringIO()

"""One log server and, for tests that ask for it, one SparkSession."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook.api.client.sync import SyncClient
from tests.regressions import lone_server
from tests.regressions.lone_server import Site
from tests.spark import session

_numbers = itertools.count()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with lone_server.running(tmp_path_factory.mktemp("site"), sweep_interval_s=0.1) as running:
        yield running


@pytest.fixture(scope="session")
def client(site: Site) -> Iterator[SyncClient]:
    with rollbook.connect(site.url) as connected:
        yield connected


@pytest.fixture
def name() -> str:
    """A name of a log that no other test uses."""
    return f"log-{next(_numbers)}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if reason := session.why_not():
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("spark")
    with session.running(folder) as running:
        yield running

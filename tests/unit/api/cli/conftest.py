"""A running cluster of one bookie that all tests of the commands share."""

from collections.abc import Iterator

import pytest

from tests.support.dev import RunningDev, running_dev
from tests.support.zookeeper import zookeeper, zookeeper_server
from tests.unit.api.cli.shell import Shell

__all__ = ["zookeeper", "zookeeper_server"]


@pytest.fixture(scope="package")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDev]:
    with running_dev(tmp_path_factory.mktemp("dev") / "data", bookies=1) as running:
        yield running


@pytest.fixture(scope="package")
def server(dev: RunningDev) -> str:
    return dev.address


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: str) -> Shell:
    return Shell(capfd, monkeypatch, server)

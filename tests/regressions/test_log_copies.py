"""The shell and its files set the copies of a log and the bookies over which they are striped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook
from rollbook.proto.errors import NoSuchLog
from tests.regressions.defects import defect
from tests.regressions.one_dev import Dev, running


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(tmp_path_factory.mktemp("dev")) as found:
        yield found


def _quorum(dev: Dev, log: str) -> tuple[int, int, int]:
    """The log's quorum, also if there are too few bookies for it."""
    with rollbook.connect(dev.url) as client:
        found = client.open(log).config.quorum
    return found.ensemble, found.write, found.ack


@defect(
    "more-copies-than-bookies",
    "A log with more copies than there are bookies was created without a warning.",
)
def test_more_copies_than_bookies_are_refused(dev: Dev, tmp_path: Path) -> None:
    refused = dev.shell("log", "create", "five", "--copies", "5")
    assert refused.returncode == 5
    assert b"--anyway" in refused.stderr
    with pytest.raises(NoSuchLog):
        _quorum(dev, "five")
    made = dev.shell("log", "create", "five", "--copies", "5", "--anyway")
    assert made.returncode == 0
    assert made.stderr.startswith(b"warning: ")
    assert _quorum(dev, "five") == (5, 5, 3)
    file = tmp_path / "logs.toml"
    file.write_text("[logs.four]\ncopies = 4\n")
    assert dev.shell("apply", str(file)).returncode == 5
    assert dev.shell("apply", str(file), "--anyway").returncode == 0


@defect(
    "shell-cannot-stripe",
    "`log create` and `apply` could not stripe a log over more bookies than it has copies.",
)
def test_create_and_apply_set_the_ensemble_of_a_log(dev: Dev, tmp_path: Path) -> None:
    words = ("--ensemble", "6", "--copies", "3", "--acks", "2", "--anyway")
    assert dev.shell("log", "create", "clicks", *words).returncode == 0
    assert _quorum(dev, "clicks") == (6, 3, 2)
    file = tmp_path / "logs.toml"
    file.write_text("[logs.views]\nensemble = 2\ncopies = 1\n")
    assert dev.shell("apply", str(file), "--anyway").returncode == 0
    assert _quorum(dev, "views") == (2, 1, 1)

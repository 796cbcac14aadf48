"""The procedures in `docs/operations.md` for removing, reinstalling and moving a bookie and for a
bad disk.

The test emulates the machine: `systemctl` starts and stops a real bookie, and `rsync` copies to
another folder, which stands for the new machine. `rollbook` lines run unchanged, in this process.
"""

import asyncio
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from rollbook.api.cli.main import exit_code, rollbook
from rollbook.proto.errors import RollbookError
from tests.support import processes
from tests.support.bookies import RunningBookie
from tests.support.ledger_cluster import ProcessCluster
from tests.support.processes import REPOSITORY, Family
from tests.unit.api.cli.server.test_recovery import LOST, write_ledgers

PAGE: Final = REPOSITORY / "docs" / "operations.md"
PATIENCE_S: Final = 60.0
_CONFIG_PATH: Final = "/etc/rollbook/bookie.toml"
_DATA_PATH: Final = "/var/lib/rollbook/"
_CONFIG: Final = """
[bookie]
metadata = "{url}"
bookie_id = "{bookie}"
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
session_timeout_s = 1.0
log_level = "error"

[storage]
journal_dir = "{data}/journal"
ledger_dirs = ["{data}/disk1", "{data}/disk2", "{data}/disk3"]
journal_file_bytes = 4194304
"""


def _procedures() -> dict[str, list[str]]:
    """Blocks by heading; the first block, without a heading, applies to all procedures."""
    section = PAGE.read_text().partition("\n## Remove, reinstall or move")[2].partition("\n## ")[0]
    return {
        part.partition("\n")[0]: re.findall(r"(?ms)^```bash\n(.*?)^```", part)
        for part in section.split("\n### ")
    }


PROCEDURES: Final = _procedures()


class Machine:
    """The machine on which the bookie of the procedures runs."""

    def __init__(self, children: Family, folder: Path, url: str) -> None:
        self.url = url
        self.data: Path
        self.config: Path
        self.bookie: RunningBookie
        self._children, self._folder = children, folder
        self._move_to("old-machine")
        self._start()

    def write_ledgers(self) -> None:
        """Writes ledgers until the bookie has copies.

        Every second ledger is open without a writer.
        """
        while not asyncio.run(write_ledgers(self.url, 4)):
            pass

    def type(self, block: str) -> None:
        for line in block.splitlines():
            match line.split():
                case ["systemctl", "start", "rollbook-bookie"]:
                    self._start()
                case ["systemctl", "stop", "rollbook-bookie"]:
                    self.bookie.terminate()
                    self.bookie.wait(PATIENCE_S)
                case ["rsync", "-a", source, target]:
                    assert (source, target) == (_DATA_PATH, f"new-machine:{_DATA_PATH}")
                    old = self.data
                    self._move_to("new-machine")
                    for each in old.glob("*/"):
                        shutil.copytree(each, self.data / each.name)
                case _:
                    code, told = self.run(line)
                    assert code == 0, told

    def run(self, line: str) -> tuple[int, str]:
        program, *words = shlex.split(line.replace(_CONFIG_PATH, str(self.config)))
        assert program == "rollbook"
        result = CliRunner().invoke(rollbook, words, env={"ROLLBOOK_METADATA": self.url})
        error = result.exception
        code = exit_code(error) if isinstance(error, RollbookError) else result.exit_code
        return code, f"{line}\n{result.output}{error or ''}"

    def _move_to(self, name: str) -> None:
        self.data = self._folder / name
        self.data.mkdir()
        self.config = self.data / "bookie.toml"
        self.config.write_text(_CONFIG.format(url=self.url, bookie=LOST, data=self.data))

    def _start(self) -> None:
        command = ("rollbook.api.cli.main", "server", "bookie", "--config", self.config)
        self.bookie = RunningBookie(self._children.start_module(*command))
        self.bookie.wait_ready(PATIENCE_S)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine in a cluster with three other bookies and a recovery server."""
    folder = tmp_path_factory.mktemp("procedures")
    with processes.family() as children:
        cluster = ProcessCluster(children, folder, ("bk-1", "bk-2", "bk-3"))
        command = ("rollbook.api.cli.main", "server", "recovery", "--log-level", "error")
        children.start_module(
            *command,
            "--metadata",
            cluster.url,
            environment={"ROLLBOOK_WORKER_GRACE_S": "0", "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "0.2"},
        )
        yield Machine(children, folder, cluster.url)


def test_tests_cover_every_procedure_of_the_page() -> None:
    assert list(PROCEDURES)[1:] == [
        "Scale down",
        "Reinstall a bookie",
        "Move a bookie to another machine",
        "Replace a bad disk",
    ]
    (first,) = next(iter(PROCEDURES.values()))
    assert first == "export ROLLBOOK_METADATA=zk://zk1,zk2,zk3/ledgers\n"


@pytest.mark.timeout(180)
def test_bookie_can_be_removed_and_added_again_as_written(machine: Machine) -> None:
    """BL1, BL16, BL25, BL26."""
    machine.write_ledgers()
    removed, back = PROCEDURES["Scale down"]
    machine.type(removed)
    assert machine.run(f"rollbook bookie undrain {LOST}")[0] == 2, "the cluster has no such bookie"
    machine.type(back)


@pytest.mark.timeout(180)
def test_bookie_can_be_reinstalled_as_written(machine: Machine) -> None:
    machine.write_ledgers()
    machine.bookie.kill()
    for each in machine.data.glob("*/"):
        shutil.rmtree(each)
    for block in PROCEDURES["Reinstall a bookie"]:
        machine.type(block)


@pytest.mark.timeout(180)
def test_bookie_can_be_moved_to_another_machine_as_written(machine: Machine) -> None:
    machine.write_ledgers()
    old = machine.config
    for block in PROCEDURES["Move a bookie to another machine"]:
        machine.type(block)
    assert machine.config != old
    code, told = machine.run(f"rollbook bookie doctor --config {old}")
    assert code == 8, told


@pytest.mark.timeout(180)
def test_bad_disk_can_be_replaced_as_written(machine: Machine) -> None:
    machine.write_ledgers()
    machine.bookie.kill()
    shutil.rmtree(machine.data / "disk2")
    (machine.data / "disk2").mkdir()
    code, told = machine.run(f"rollbook bookie doctor --config {_CONFIG_PATH}")
    assert (code, "rollbook bookie write-off" in told) == (8, True), told
    for block in PROCEDURES["Replace a bad disk"]:
        machine.type(block)

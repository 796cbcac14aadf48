"""Real bookie processes: `rollbook server bookie`, started, looked at, stopped and killed by tests.

    with processes.family() as children:
        bookie = bookies.start(children, folder, "sqlite:///…/metadata.db")
        address = bookie.wait_ready()
        bookie.kill()
        bookie = bookies.start(children, folder, …)     # On what is left of it.

The bookie listens on a free port of its own choice, unless told otherwise, and keeps its id: a new
life need not find the old port free.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rollbook.proto.ports import Address
from tests.support import commands
from tests.support.processes import Child, Family

PATIENCE_S: Final = 60.0  # For anything that has to happen, on a busy machine.
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


def arguments(
    folder: Path,
    metadata_url: str,
    *,
    bookie_id: str = "bk-1",
    listen: str = "127.0.0.1:0",
    ledger_dirs: int = 1,
) -> list[str]:
    """The command line behind `rollbook`, with all of the bookie's files below `folder`."""
    directories = [folder / f"ledgers{number + 1}" for number in range(ledger_dirs)]
    return [
        "server",
        "bookie",
        "--metadata",
        metadata_url,
        "--listen",
        listen,
        "--bookie-id",
        bookie_id,
        "--journal-dir",
        str(folder / "journal"),
        *(word for path in directories for word in ("--ledger-dir", str(path))),
    ]


def start(
    children: Family,
    folder: Path,
    metadata_url: str,
    *more: str,
    bookie_id: str = "bk-1",
    listen: str = "127.0.0.1:0",
    ledger_dirs: int = 1,
    environment: Mapping[str, str] = {},
) -> "RunningBookie":
    """A bookie on its way; `wait_ready` says when it serves. `more` are further flags."""
    command = arguments(
        folder, metadata_url, bookie_id=bookie_id, listen=listen, ledger_dirs=ledger_dirs
    )
    child = children.start(
        sys.executable, "-m", "rollbook.api.cli.main", *command, *more, environment=environment
    )
    return RunningBookie(child)


def address_in(ready_line: str) -> Address:
    host, _, port = ready_line.rsplit(maxsplit=1)[-1].rpartition(":")
    return Address(host, int(port))


def cpu_s(pid: int) -> float:
    """Of all the process's threads, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def give_out_ids(metadata_url: str) -> None:
    """For tests that write to ledgers without metadata: else a bookie takes its store for an older copy."""
    commands.run("cluster", "restored", "--yes", "--metadata", metadata_url).check_returncode()


class RunningBookie:
    """One process. What a test may do to it, and what the kernel says about it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.address: Address  # From `wait_ready` on.

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child.is_running

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> Address:
        """Its one line: the address is the last word. Raises `ChildFailed` if it ends instead."""
        self.address = address_in(self.child.line(timeout_s))
        return self.address

    def kill(self) -> None:
        """SIGKILL; gone when it returns."""
        self.child.kill()

    def terminate(self) -> None:
        """SIGTERM; `wait` says how it ended."""
        self.child.terminate()

    def stop(self) -> None:
        """SIGSTOP; stands still when it returns."""
        self.child.stop()

    def resume(self) -> None:
        self.child.resume()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.child.wait(timeout_s)

    # --- What the kernel says -----------------------------------------------------------------

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def most_resident_bytes(self) -> int:
        """Ever, or since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def written_bytes(self) -> int:
        """Handed to the disk's file systems so far."""
        return self._field("io", "write_bytes")

    def _status(self, name: str) -> int:
        return self._field("status", name) * 1024

    def _field(self, file: str, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/{file}").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0])
        raise KeyError(name)


def serving(bookies: Sequence[RunningBookie]) -> list[Address]:
    """Waits for all of them."""
    return [bookie.wait_ready() for bookie in bookies]

"""Real bookie processes: tests start, inspect, stop and kill `rollbook server bookie`.

    with processes.family() as children:
        bookie = bookies.start(children, folder, "sqlite:///…/metadata.db")
        address = bookie.wait_ready()
        bookie.kill()
        bookie = bookies.start(children, folder, …)     # Restarts it with its files.

The bookie listens on a free port unless a test chooses one, and keeps its id: a restarted bookie
does not need the old port.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rollbook.proto.ports import Address
from tests.support import commands
from tests.support.processes import Child, Family

PATIENCE_S: Final = 60.0  # A time-out for anything that must happen, on a busy machine.
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


def arguments(
    folder: Path,
    metadata_url: str,
    *,
    bookie_id: str = "bk-1",
    listen: str = "127.0.0.1:0",
    ledger_dirs: int = 1,
) -> list[str]:
    """The arguments of `rollbook`, with all of the bookie's files below `folder`."""
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
    """Starts a bookie; `wait_ready` waits until it serves. `more` are additional flags."""
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
    """CPU seconds of all threads of the process, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def give_out_ids(metadata_url: str) -> None:
    """Raises the ledger id counter, for tests that write to ledgers without metadata.

    Otherwise a bookie concludes that the metadata store was restored from an older copy.
    """
    commands.run("cluster", "restored", "--yes", "--metadata", metadata_url).check_returncode()


class RunningBookie:
    """One bookie process: how tests control it, and what the kernel reports about it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.address: Address  # Set by `wait_ready`.

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child.is_running

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> Address:
        """Reads the address, the last word of its output line. Raises `ChildFailed` if it ends."""
        self.address = address_in(self.child.line(timeout_s))
        return self.address

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone."""
        self.child.kill()

    def terminate(self) -> None:
        """Sends SIGTERM; `wait` returns the exit code."""
        self.child.terminate()

    def stop(self) -> None:
        """Sends SIGSTOP and waits until the process is stopped."""
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
        """The peak since the start or since `forget_peak`."""
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
        """Bytes handed to file systems so far."""
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
    """Waits until all bookies serve."""
    return [bookie.wait_ready() for bookie in bookies]

"""The test's handle on a forgetful mount: starts the process behind it and sends it commands."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.forgetful import kernel
from tests.support.forgetful.volume import Names
from tests.tally import missing_piece

_REPOSITORY: Final = Path(__file__).parents[3]
_END_TIMEOUT_S: Final = 10
HOW_TO_ENABLE: Final = "Linux with /dev/fuse, and root or `fusermount3` (apt-get install fuse3)"


class DiskFailed(Exception):
    """The process behind a forgetful mount refused, or is gone."""


def why_not() -> str | None:
    """Why no forgetful file system can be mounted here; None if it can."""
    if sys.platform != "linux":
        return "it needs Linux"
    try:
        with tempfile.TemporaryDirectory(prefix="forgetful-") as folder:
            device = kernel.mount(folder)
            kernel.unmount(folder)
            os.close(device)
    except OSError as error:
        return f"cannot mount: {error}"
    return None


def require() -> None:
    """Skips the test if there is no such file system, or fails it if one is required."""
    import pytest  # Imported here, because the server's process starts faster without it.

    if why := why_not():
        pytest.skip(missing_piece("fuse", why, HOW_TO_ENABLE))


class ForgetfulDisk:
    """A mounted file system. Its methods may be called from any thread of the test."""

    def __init__(self, path: Path, backing: Path, names: Names) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forgetful.server", path, backing, names.value],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # A Ctrl-C is only for the test, which then ends this process.
        )
        try:
            self._reply()
        except BaseException:
            self.close()
            raise

    @property
    def server_pid(self) -> int:
        return self._server.pid

    def forget(self, *, keep: float = 0.0, seed: int = 0) -> dict[str, int]:
        """Cuts the power; returns the statistics after it.

        First, a random fraction of about `keep` of what was not synced reaches the disk. Processes
        with open files get ENOTCONN: kill them before.
        """
        if keep:
            self.write_back(keep=keep, seed=seed)
        return dict(self._command("forget"))

    def write_back(self, *, keep: float, seed: int) -> None:
        """Writes about that fraction of un-synced sectors and names, like the kernel's flusher."""
        self._command("write_back", seed=seed, fraction=keep)

    def statistics(self) -> dict[str, int]:
        """As named in `volume.Statistics`."""
        return dict(self._command("statistics"))

    def fail_sync(self, nth: int = 1) -> None:
        """Makes the nth fsync of a file from now on fail with EIO; 0 cancels that.

        The pages then count as clean, as on Linux: readable, never written, without a second error.
        """
        self._command("fail_sync", nth=nth)

    def limit_free(self, free_bytes: int | None = 0) -> None:
        """Limits the free space; None removes the limit."""
        self._command("limit_free", free_bytes=free_bytes)

    def slow_sync(self, delay_s: float) -> None:
        """Delays each fsync by `delay_s`; 0 also ends the waiting ones."""
        self._command("slow_sync", delay_s=delay_s)

    def halt(self, *, after_requests: int = 0, dirty_bytes: int = 1) -> None:
        """Halts the disk: until `forget`, no request gets a response or takes effect.

        The halt begins after `after_requests` requests, when at least `dirty_bytes` bytes (in whole
        pages) are not synced. Processes that are killed then end after `unplug`.
        """
        self._command("halt", requests=after_requests, dirty_bytes=dirty_bytes)

    def unplug(self) -> None:
        """Removes the file system until `forget`, and fails the requests that wait."""
        self._command("unplug")

    @property
    def is_halted(self) -> bool:
        return bool(self._command("is_halted"))

    def close(self) -> None:
        if self._server.stdin and self._server.stdout:
            self._server.stdin.close()
            try:
                self._server.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server.stdout.close()
        kernel.unmount(str(self.path))  # In case the server was killed and could not.

    def _command(self, name: str, **arguments: Any) -> Any:
        assert self._server.stdin
        with self._lock:
            self._server.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
            self._server.stdin.flush()
            return self._reply()

    def _reply(self) -> Any:
        assert self._server.stdout
        line = self._server.stdout.readline()
        if not line:
            raise DiskFailed(f"the file system's process ended with {self._server.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise DiskFailed(reply["error"])
        return reply["ok"]


@contextmanager
def mount(folder: Path, names: Names = Names.EXT4) -> Iterator[ForgetfulDisk]:
    """An empty forgetful file system at `folder`/disk; unmounted and removed in any case."""
    path, backing = folder / "disk", folder / "backing"
    path.mkdir(parents=True)
    backing.mkdir()
    try:
        disk = ForgetfulDisk(path, backing, names)
        try:
            yield disk
        finally:
            disk.close()
    finally:
        path.rmdir()
        shutil.rmtree(backing)

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
    """Skips the test where no such file system can be had; fails it where one is demanded."""
    import pytest  # Not above: the server's process starts faster without.

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
            start_new_session=True,  # A Ctrl-C is for the test, which then ends us.
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
        """The power cut; returns the statistics after it.

        First, about the fraction `keep` of what was not synced reaches the disk, by chance. Every
        process that still has a file open gets ENOTCONN for it: kill them before.
        """
        if keep:
            self.write_back(keep=keep, seed=seed)
        return dict(self._command("forget"))

    def write_back(self, *, keep: float, seed: int) -> None:
        """As the kernel's flusher: about that fraction of un-synced sectors and names arrives."""
        self._command("write_back", seed=seed, fraction=keep)

    def statistics(self) -> dict[str, int]:
        """As named in `volume.Statistics`."""
        return dict(self._command("statistics"))

    def fail_sync(self, nth: int = 1) -> None:
        """The nth fsync of a file from now on ends in EIO; 0 takes that back.

        The pages count as clean then, as on Linux: readable, never written, no second error.
        """
        self._command("fail_sync", nth=nth)

    def limit_free(self, free_bytes: int | None = 0) -> None:
        """The disk is full when so much more was taken; None: as large as ever."""
        self._command("limit_free", free_bytes=free_bytes)

    def slow_sync(self, delay_s: float) -> None:
        """Each fsync takes so much longer; 0 ends the waiting ones, too."""
        self._command("slow_sync", delay_s=delay_s)

    def halt(self, *, after_requests: int = 0, dirty_bytes: int = 1) -> None:
        """The power fails: nobody gets an answer any more, and nothing takes effect, until `forget`.

        That is at the first moment, so many requests from now on or later, at which so many bytes
        are not synced (in whole pages). Whoever is killed then dies with `unplug`.
        """
        self._command("halt", requests=after_requests, dirty_bytes=dirty_bytes)

    def unplug(self) -> None:
        """Nothing is there any more until `forget`, and who waits for an answer need not wait."""
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

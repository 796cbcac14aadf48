"""The process behind a mount: requests of the kernel on one side, commands of a test on the other.

Commands are lines of JSON on standard input, `{"do": NAME, …}`; each gets one line of JSON on
standard output, `{"ok": …}` or `{"error": TEXT}`. The first line of output says whether the mount
succeeded. When standard input ends for any reason, the process unmounts and ends.

One thread, one request at a time: it never touches its own mount, and each request is atomic. A
delayed fsync waits in a list, so that other requests overtake it. It takes effect when its time is
over, and never if the power is cut first. A halt is the first half of a power cut: from some moment
on, no request gets a response or takes effect.
"""

import dataclasses
import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.support.forgetful import kernel
from tests.support.forgetful.volume import Names, Volume

_SYNCS: Final = (kernel.OPCODE_FSYNC, kernel.OPCODE_FSYNCDIR)


class Server:
    def __init__(self, mountpoint: str, backing: str, names: Names) -> None:
        self._volume = Volume(backing, names)
        self._mountpoint = mountpoint
        self._buffer = bytearray(kernel.REQUEST_BYTES_MAX)
        self._sync_delay_s = 0.0
        self._slow: list[tuple[float, kernel.Request]] = []  # Due times of delayed fsyncs.
        self._halt: tuple[int, int] | None = (
            None  # Number of requests and of dirty bytes at which to halt.
        )
        self._is_halted = False
        self._commands: dict[str, Callable[..., Any]] = {
            "forget": self._forget,
            "write_back": self._volume.write_back,
            "statistics": lambda: dataclasses.asdict(self._volume.measure()),
            "fail_sync": self._volume.fail_sync,
            "limit_free": self._volume.limit_free,
            "slow_sync": self._slow_sync,
            "halt": self._halt_when,
            "is_halted": lambda: self._is_halted,
            "unplug": self._unmount,
        }
        self._mount()

    def _mount(self) -> None:
        self._device = kernel.mount(self._mountpoint)
        self._connection = kernel.Connection(self._volume)
        self._poller = select.poll()
        self._poller.register(self._device, select.POLLIN)
        self._poller.register(sys.stdin.fileno(), select.POLLIN)

    def _unmount(self) -> None:
        if self._device < 0:
            return
        self._slow.clear()
        if not self._is_halted:
            self._poller.unregister(self._device)
        kernel.unmount(self._mountpoint)
        os.close(self._device)  # Ends every open file: its users get ENOTCONN from now on.
        self._device = -1

    def run(self) -> None:
        commands = sys.stdin.fileno()
        _say({"ok": "mounted"})
        pending = b""
        try:
            while True:
                for source, _ in self._poller.poll(self._wait_ms()):
                    if source == self._device:
                        self._serve()
                    elif chunk := os.read(commands, 65536):
                        *lines, pending = (pending + chunk).split(b"\n")
                        for line in lines:
                            _say(self._obey(json.loads(line)))
                        break  # A power cut may have changed the device.
                    else:
                        return
                if self._slow:
                    self._finish_slow_syncs()
        finally:
            self._unmount()

    def _serve(self) -> None:
        try:
            length = os.readv(self._device, [self._buffer])
        except OSError:  # The request was withdrawn, or the disk was unmounted: wait for the end.
            return
        self._volume.statistics.requests += 1
        request = kernel.Request(memoryview(self._buffer)[:length])
        if self._sync_delay_s and request.opcode in _SYNCS:
            self._slow.append((time.monotonic() + self._sync_delay_s, request))
        else:
            self._answer(request)

    def _answer(self, request: kernel.Request) -> None:
        if self._is_halted or (self._halt and self._halts_now(*self._halt)):
            return
        if reply := self._connection.answer(request):
            try:
                os.writev(self._device, reply)
            except OSError:  # ENOENT: the caller was killed and no longer waits.
                pass

    def _halts_now(self, requests: int, dirty_bytes: int) -> bool:
        self._halt = (requests - 1, dirty_bytes)
        self._is_halted = requests <= 0 and self._volume.measure().dirty_bytes >= dirty_bytes
        if self._is_halted:
            self._halt = None
            self._slow.clear()
            self._poller.unregister(self._device)
        return self._is_halted

    def _wait_ms(self) -> float | None:
        if not self._slow:
            return None
        return max(0.0, min(due for due, _ in self._slow) - time.monotonic()) * 1000

    def _finish_slow_syncs(self) -> None:
        now = time.monotonic()
        due = [request for when, request in self._slow if when <= now]
        self._slow = [(when, request) for when, request in self._slow if when > now]
        for request in due:
            self._answer(request)

    # --- Commands -------------------------------------------------------------------------------

    def _obey(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": self._commands[command.pop("do")](**command)}
        except (OSError, KeyError, TypeError) as error:
            return {"error": repr(error)}

    def _forget(self) -> dict[str, Any]:
        self._unmount()
        self._volume.forget()
        self._halt, self._is_halted = None, False
        self._mount()
        return dataclasses.asdict(self._volume.measure())

    def _slow_sync(self, delay_s: float) -> None:
        self._sync_delay_s = delay_s
        if not delay_s:
            self._slow = [(0.0, request) for _, request in self._slow]

    def _halt_when(self, requests: int, dirty_bytes: int) -> None:
        self._halt = (requests, dirty_bytes)


def _say(message: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def main() -> None:
    mountpoint, backing, names = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Each file has an open backing file.
    try:
        server = Server(mountpoint, backing, Names(names))
    except OSError as error:
        _say({"error": str(error)})
        sys.exit(1)
    server.run()


if __name__ == "__main__":
    main()

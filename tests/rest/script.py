"""Runs the shell script that users copy: it gets lines, is killed and restarted, and loses
responses.
"""

import http.client
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which
from typing import Any, Final

from tests.support.processes import REPOSITORY, Family

SCRIPT: Final = REPOSITORY / "examples" / "append_exactly_once.sh"

_PATIENCE_S: Final = 60.0
_AHEAD: Final = 100  # Lines given to the script beyond those known to be appended.


class Script:
    """Gives the script lines as it needs them; after a restart again from the first one."""

    def __init__(self, children: Family, folder: Path, log: str, places: Sequence[str]) -> None:
        self.deaths = 0
        self._children = children
        self._log = log
        self._next_file = folder / "next"
        self._codes_file = folder / "codes"
        self._servers = " ".join(f"http://{place}" for place in places)
        self._lose_file = folder / "lose"
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._put_in_between(self._bin / "curl")
        self._start()

    @property
    def next(self) -> int:
        """The number of the first line that the script does not know to be appended."""
        return int(self._next_file.read_text()) if self._next_file.exists() else 0

    @property
    def codes(self) -> list[str]:
        return self._codes_file.read_text().split()

    def wait_for(self, number: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.next < number:
            assert self._child.is_running, "the script has given up"
            assert time.monotonic() < deadline, f"line {self.next} was not appended"
            while self._said < self.next + _AHEAD:
                self._child.say(_line(self._said))
                self._said += 1
            time.sleep(0.005)

    def die(self) -> None:
        """Kills the script. A request of it may still be on its way."""
        self._child.kill()
        self.deaths += 1
        self._start()

    def end(self) -> list[str]:
        """Waits until the script has appended all its lines, and returns them."""
        self.wait_for(self.next + 1)
        self._child.end_input()
        assert self._child.wait(_PATIENCE_S) == 0
        return [_line(number) for number in range(self._said)]

    def lose_answer(self) -> None:
        """Drops the next response to a request that was served."""
        self._lose_file.touch()

    def _start(self) -> None:
        self._said = 0
        self._child = self._children.start(
            SCRIPT,
            self._servers,
            self._log,
            "script",
            self._next_file,
            environment={"PATH": f"{self._bin}:{os.environ['PATH']}"},
        )
        while self._said < self.next:
            self._child.say(_line(self._said))
            self._said += 1

    def _put_in_between(self, path: Path) -> None:
        """Writes a wrapper of curl that records responses, and drops one on demand."""
        lines = (
            "#!/bin/sh",
            f'code=$("{which("curl")}" "$@" 2>/dev/null)',
            f'echo "$code" >>"{self._codes_file}"',
            f'case $code in 2*) rm "{self._lose_file}" 2>/dev/null && exit 52 ;; esac',
            'echo "$code"',
        )
        path.write_text("\n".join(lines))
        path.chmod(0o700)


def _line(number: int) -> str:
    """A line with characters that `echo` or `read` would change."""
    return f"  {number}\\n $HOME 'ä' \"%s\" "


def asked(place: str, method: str, path: str) -> Any:
    """Sends a request, which the server forwards to the log's owner; retries while there is none."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        status, answer = _asked_once(place, method, path)
        if status < 300:
            return answer
        assert answer["retryable"], answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def _asked_once(place: str, method: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(place, timeout=_PATIENCE_S)
    try:
        connection.request(method, path, headers={"log-forward": "auto"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def read_all(place: str, log: str) -> Iterator[str]:
    """Reads all acknowledged lines from one server. Responses may be short."""
    start, tail = 0, asked(place, "POST", f"{log}:barrier")["tail"]
    while start < tail:
        found = asked(place, "GET", f"{log}/records?from={start}")
        yield from (each["data"] for each in found["records"])
        start = found["next_offset"]

"""Kills log servers again and again (`python -m tests rest --kills N`) under this load:

the script     examples/append_exactly_once.sh appends lines, and is sometimes killed, too
followers      one on each server reconnects with the last id that it received, like a browser's
               EventSource; with `--browser` the follower on the first server is Chromium, unless
               there is none, which is reported

At the end the log has each line once and in order, and each follower has received it so.
"""

import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Final, cast

from tests.rest import browser
from tests.rest.browser import Browser
from tests.rest.script import Script, asked, read_all
from tests.support import log_processes
from tests.support.event_source import EventSource
from tests.support.log_processes import LogProcesses
from tests.support.processes import Child
from tests.tally import Tally

LOG: Final = "/v1/namespaces/default/logs/lines"
RECORDS: Final = f"{LOG}/records"
SERVERS: Final = ("a", "b")

_PATIENCE_S: Final = 60.0
_LINES_BETWEEN: Final = 8  # The maximum between two kills.
_MORE_S: Final = 0.02  # The maximum additional delay, so that kills hit any moment of a request.
_SCRIPT_DIES_EVERY: Final = 5
_SHOWN_MAX: Final = 5

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


def run(
    kills: int, seed: int, progress: Progress, say: Say, *, with_browser: bool = False
) -> Tally:
    tally = Tally("records")
    if with_browser and browser.path() is None:
        tally.skipped.append(browser.missing())
        with_browser = False
    with tempfile.TemporaryDirectory(prefix="rb-kills-") as folder, ExitStack() as stack:
        cluster = stack.enter_context(log_processes.running(Path(folder)))
        servers = [Server(cluster, name) for name in SERVERS]
        places = [server.place for server in servers]
        for server in servers:
            server.until_ready()
        asked(servers[0].place, "PUT", LOG)
        path = f"{RECORDS}?heartbeat_ms=500"
        followers: list[Browser | EventSource] = [EventSource(place, path) for place in places]
        if with_browser:
            followers[0] = Browser(places[0], path)
        for follower in followers:
            stack.enter_context(cast(AbstractContextManager[object], follower))
        script = Script(cluster.children, Path(folder), "default/lines", places)
        _strike(servers, script, kills, random.Random(seed), progress)
        lines = script.end()
        _judge("the log", list(read_all(servers[0].place, LOG)), lines, tally, say)
        for server, follower in zip(servers, followers, strict=True):
            follower.wait_for(len(lines))
            _judge(f"who followed at {server.name}", follower.values, lines, tally, say)
        codes = script.codes
        recognised = codes.count("200")
        say(
            f"{kills} servers killed, and {script.deaths} times the script; {len(codes):,} requests: "
            f"{codes.count('201'):,} appended, {recognised} recognised, the others unanswered; "
            f"followers came back {sum(each.connections - 1 for each in followers)} times"
        )
        if not recognised:  # Responses were dropped, so some lines must be recognised.
            say("no line was asked for again that had been appended: that shows nothing")
            tally.failed += 1
        for each in followers:
            if each.refusals:
                say(f"a browser would have given up, told {each.refusals}")
                tally.failed += 1
    return tally


def _strike(
    servers: Sequence["Server"],
    script: Script,
    kills: int,
    chance: random.Random,
    progress: Progress,
) -> None:
    for number in range(kills):
        progress(number, kills)
        script.wait_for(script.next + chance.randint(1, _LINES_BETWEEN))
        time.sleep(chance.uniform(0, _MORE_S))
        script.lose_answer()
        if number % _SCRIPT_DIES_EVERY == _SCRIPT_DIES_EVERY - 1:
            script.die()
        server = chance.choice(servers)
        server.kill()
        server.start()
        chance.choice(servers).until_ready()  # Waits for one only, so that sometimes both are away.
    progress(kills, kills)
    for server in servers:
        server.until_ready()


class Server:
    """A log server that listens on the same ports after each restart."""

    def __init__(self, cluster: LogProcesses, name: str) -> None:
        self.name = name
        self.place, self._listen = (f"127.0.0.1:{_port()}" for _ in range(2))
        self._cluster = cluster
        self._child: Child
        self._is_ready = False
        self.start()

    def start(self) -> None:
        self._is_ready = False
        self._child = self._cluster.children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            self._cluster.metadata,
            "--server-name",
            self.name,
            "--listen",
            self._listen,
            "--rest",
            self.place,
            "--log-level",
            "error",
        )

    def until_ready(self) -> None:
        while not self._is_ready:
            self._is_ready = self._child.line(_PATIENCE_S).startswith("ready: ")

    def kill(self) -> None:
        self._child.kill()
        self._cluster.children.forget_ended()


def _port() -> int:
    """A free port that the system does not use for outgoing connections."""
    while True:
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", next(_PORTS)))
            return int(found.getsockname()[1])


_PORTS: Final = iter(range(20_000 + os.getpid() % 10_000, 32_768))


def _judge(who: str, found: list[str], lines: list[str], tally: Tally, say: Say) -> None:
    wrong = [
        f"{number}: {got!r} instead of {line!r}"
        for number, got, line in zip(count(), found, lines, strict=False)
        if got != line
    ]
    if len(found) != len(lines):
        wrong.append(f"{len(found)} records instead of {len(lines)}")
    for text in wrong[:_SHOWN_MAX]:
        say(f"{who}: {text}")
    tally.passed += max(0, len(lines) - len(wrong))
    tally.failed += len(wrong)

"""Runs kinds of tests in parallel lanes, and retries a few failed tests."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.tally import Tally, clean

NOTHING_CHECKED: Final = 2  # The exit code of a kind that cannot check anything here.
TRIED_AGAIN_MAX: Final = 3
"""The number of failed tests in a run that are retried. More failures are not an accident.

A test may get no CPU for seconds while four kinds run on two processors. If it found a defect, it
fails again when it runs alone."""
_GIVING_WAY: Final = ("nice", "-n", "10")
_AGAIN: Final = ("pytest", "-q", "--no-header")

Commands = dict[str, list[str]]


@dataclass(frozen=True)
class _Outcome:
    verdict: str
    said: str
    seconds: float
    cpu_s: float

    @property
    def lines(self) -> list[str]:
        return self.said.splitlines()

    @property
    def skipped(self) -> list[str]:
        return [
            line.removeprefix("skipped: ") for line in self.lines if line.startswith("skipped: ")
        ]


def run(*lanes: Commands, shared: Mapping[str, list[str]] = {}) -> Tally:
    """Each lane runs its own commands one after the other, and then takes shared commands."""
    tally = Tally("kinds")
    folder = _folder()
    compiled = os.path.join(folder, "compiled")
    environment = {**os.environ, "TMPDIR": folder, "PYTHONPYCACHEPREFIX": compiled}
    # Without a cache, each process would compile Rollbook again, which takes over half a second.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    left = deque((name, [*_GIVING_WAY, *_python(command)]) for name, command in shared.items())
    failed: dict[str, _Outcome] = {}

    def run_one(name: str, command: Sequence[str]) -> None:
        outcome = _run(command, environment)
        _print(name, outcome)
        tally.passed += outcome.verdict == "ok"
        tally.skipped += outcome.skipped
        if outcome.verdict == "FAILED":
            failed[name] = outcome

    def run_lane(commands: Commands) -> None:
        for name, command in commands.items():
            run_one(name, _python(command))
        with contextlib.suppress(IndexError):
            while True:
                run_one(*left.popleft())

    with ThreadPoolExecutor(len(lanes)) as threads:
        for _ in threads.map(run_lane, lanes):
            pass
    again = to_try_again({name: outcome.said for name, outcome in failed.items()})
    for name, tests in again.items():
        outcome = _run(_python([*_AGAIN, *tests]), environment)
        _print(f"{name} again", outcome)
        if outcome.verdict == "ok":
            del failed[name]
            tally.passed += 1
            print("".join(f"passed when it ran alone: {test}\n" for test in tests), end="")
    tally.failed = len(failed)
    tally.skipped = clean(tally.skipped)
    shutil.rmtree(compiled if tally.failed else folder, ignore_errors=True)
    if tally.failed and os.listdir(folder):
        print(f"what is left is in {folder}, until the next run")
    return tally


_FAILED_TEST: Final = re.compile(r"^(?:FAILED|ERROR) (tests/\S+\.py::.+?)(?: - .*)?$", re.MULTILINE)
_FAILED_COUNT: Final = re.compile(r", (\d+) failed")


def to_try_again(said: Mapping[str, str]) -> dict[str, list[str]]:
    """The failed tests by kind, or nothing if there are many or if something else failed.

    Simulations are not retried: a seed would fail again.
    """
    tests: dict[str, list[str]] = {}
    for name, text in said.items():
        found = clean(_FAILED_TEST.findall(text))
        counts = _FAILED_COUNT.findall(text.rstrip().rpartition("\n")[2])
        if [int(count) for count in counts] != [len(found)]:
            return {}
        tests[name] = found
    return tests if sum(map(len, tests.values())) <= TRIED_AGAIN_MAX else {}


def _folder() -> str:
    """A folder for all temporary files. Removes the folders of earlier runs that were killed.

    Its name is short, because the paths of sockets must be.
    """
    everybody = tempfile.gettempdir()
    for name in os.listdir(everybody):
        found = _FOLDER.fullmatch(name)
        if found and not _is_running(int(found[1])):
            shutil.rmtree(os.path.join(everybody, name), ignore_errors=True)
    folder = os.path.join(everybody, f"rb-{os.getpid()}")
    os.mkdir(folder, mode=0o700)
    return folder


_FOLDER: Final = re.compile(r"rb-(\d+)")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _python(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", *command]


def _run(command: Sequence[str], environment: Mapping[str, str]) -> _Outcome:
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    with process.stdout:
        said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    cpu_s = usage.ru_utime + usage.ru_stime  # Includes the children that it has waited for.
    verdict = "ok" if process.returncode == 0 else "FAILED"
    outcome = _Outcome(verdict, said, seconds, cpu_s)
    if process.returncode == NOTHING_CHECKED and outcome.skipped:
        return _Outcome("skipped", said, seconds, cpu_s)
    return outcome


def _print(name: str, outcome: _Outcome) -> None:
    told = f"{outcome.said}\n" if outcome.verdict == "FAILED" else ""
    times = f"{outcome.seconds:6.1f} s {outcome.cpu_s:6.1f} s of CPU"
    last = outcome.lines[-1] if outcome.lines else ""
    print(f"{told}{name:<12}{outcome.verdict:<8}{times}  {last}\n", end="", flush=True)

"""The examples in other languages against real servers, some of which are killed (`python -m tests languages`).

Each example appends lines while the owner of its log is killed. Then the example is killed,
restarted with the same producer, and appends each line again. It follows the log while the owner is
killed once more, one record is appended and the log is sealed. At the end the log has each line
once and in order, and the example has printed each line once.

`buf lint` checks the protos, and pyright a Python program with the client's types. npm installs
both.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import rollbook
from tests.languages import toolchains
from tests.languages.toolchains import LANGUAGES, Language, Missing
from tests.support import log_processes
from tests.support.log_processes import LogProcesses
from tests.support.processes import Child, ChildFailed
from tests.tally import Tally, missing_piece

SERVERS: Final = ("a", "b")
LINES: Final = 200
_KILLED_AFTER: Final = 20
_TYPED: Final = toolchains.EXAMPLES / "first_day.py"  # mypy checks it with all other code.

Say = Callable[[str], None]


def prepare(say: Say) -> Tally:
    """Downloads and builds the examples; a missing tool counts as failed, with the reason."""
    tally = Tally("toolchains")
    for language in LANGUAGES:
        try:
            language.build()
            reason = ""
        except (Missing, subprocess.TimeoutExpired) as error:
            reason = str(error)
        _count(tally, say, language.name, reason)
    return tally


def run(say: Say) -> Tally:
    tally = Tally("programs")
    commands = {}
    for language in LANGUAGES:
        try:
            commands[language] = [*map(str, language.build())]
        except Missing as error:
            tally.skipped.append(missing_piece(language.name, str(error), language.how_to_enable))
    if any(language.name == "node" for language in commands):
        _count(tally, say, "buf lint", _complaints(["buf", "lint"], toolchains.PROTOS))
        pyright = ["pyright", "--pythonpath", sys.executable, str(_TYPED)]
        _count(tally, say, "pyright", _complaints(pyright, toolchains.EXAMPLES))
    if not commands:
        return tally
    with (
        tempfile.TemporaryDirectory(prefix="rb-lang-") as folder,
        log_processes.running(Path(folder)) as cluster,
    ):
        for server in SERVERS:
            cluster.start_server(server)
        with rollbook.connect(cluster.url) as client:
            for language, command in commands.items():
                _count(tally, say, language.name, _wrong(cluster, client, language, command))
    return tally


def _count(tally: Tally, say: Say, name: str, wrong: str) -> None:
    say(f"{name}: {wrong or 'ok'}")
    tally.failed += bool(wrong)
    tally.passed += not wrong


def _complaints(command: Sequence[str], folder: Path) -> str:
    """The complaints of a tool that npm installs; empty if there are none."""
    done = subprocess.run(
        [toolchains.NODE_TOOLS / command[0], *command[1:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode else ""


def _wrong(
    cluster: LogProcesses, client: rollbook.Client, language: Language, command: list[str]
) -> str:
    """What was wrong; empty if nothing was."""
    name = f"default/{language.name}"
    servers = cluster.url.removeprefix("log://")
    arguments = [*command, servers, name, f"example-{language.name}", str(LINES)]
    try:
        first = cluster.children.start(*arguments)
        _until(first, f"append {_KILLED_AFTER}")
        log = client.open(name)
        _kill_owner(cluster, log)
        _until(first, f"tail {LINES}")
        first.kill()
        second = cluster.children.start(*arguments)
        printed = _until(second, f"tail {LINES}")
        _kill_owner(cluster, log)
        log.append(b"the last one")
        log.seal()
        printed += _until(second, f"end {LINES + 1}")
        code = second.wait()
    except ChildFailed as error:
        return str(error)
    lines = [f"line {number}" for number in range(LINES)] + ["the last one"]
    kept = [record.value.decode() for record in log.read("earliest")]
    read = [line for line in printed if line.startswith("record ")]
    if kept != lines:
        return f"the log holds {len(kept)} records, not {len(lines)}: {_difference(kept, lines)}"
    wanted = [f"record {offset} {line}" for offset, line in enumerate(lines)]
    if read != wanted:
        return f"it read {len(read)} records of {len(wanted)}: {_difference(read, wanted)}"
    return f"it ended with {code}" if code else ""


def _difference(found: list[str], wanted: list[str]) -> str:
    pairs = zip(found, wanted, strict=False)
    return next((f"{got!r} instead of {want!r}" for got, want in pairs if got != want), "the end")


def _until(program: Child, line: str) -> list[str]:
    """The lines that the program printed before that line."""
    printed = []
    while (found := program.line()) != line:
        printed.append(found)
    return printed


def _kill_owner(cluster: LogProcesses, log: rollbook.Log) -> None:
    owner = log.state().owner
    name = next(name for name, each in cluster.servers.items() if each.address == owner)
    cluster.servers[name].child.kill()
    cluster.start_server(name)

"""Completion in bash, zsh and fish themselves, each on a pseudo-terminal."""

import json
import os
import pty
import runpy
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import ZshComplete

from rollbook.api.cli import completion_scripts as shells
from tests.tally import missing_piece

PATIENCE_S: Final = 60.0
READY: Final = b"READY>"

# Records its arguments when a line is run; for a shell's completion request it runs rollbook.
PROGRAM: Final = """#!{python}
import json, os, sys
if "_ROLLBOOK_COMPLETE" in os.environ:
    from rollbook.api.cli import name_completion
    name_completion._PATIENCE_S = 30  # For a machine with much to do.
    from rollbook.api.cli.main import main
    main()
with open({told!r}, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
"""

RC: Final = {
    "bash": "PS1='READY> '\n{script}\n",
    "zsh": "PS1='READY> '\nautoload -Uz compinit && compinit -u\n{script}\n",
    "fish": "function fish_prompt; echo 'READY> '; end\nset fish_greeting\n{script}\n",
}


def rollbook(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "rollbook.api.cli.main", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    ).stdout


def called(shell: str, rc: Path) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that start the shell with only that file."""
    match shell:
        case "bash":
            return ["bash", "--noprofile", "--rcfile", str(rc), "-i"], {}
        case "zsh":
            rc.rename(rc.parent / ".zshrc")
            return ["zsh", "-d", "-i"], {"ZDOTDIR": str(rc.parent)}
        case _:
            return ["fish", "--no-config", "--init-command", f"source {rc}", "-i"], {}


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(missing_piece(name, f"there is no {name}", f"apt-get install {name}"))
    return name


@pytest.fixture(autouse=True)
def _environment_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported ROLLBOOK_ variables of the user who runs the tests would change completions."""
    for name in os.environ:
        if name.lstrip("_").startswith("ROLLBOOK_"):
            monkeypatch.delenv(name)


class Terminal:
    def __init__(self, descriptor: int, told: Path) -> None:
        self._descriptor = descriptor
        self._told = told
        self._shown = b""
        self._lines = 0

    def wait_until_ready(self) -> None:
        self._until(lambda: READY in self._shown)

    def completed(self, *pieces: str) -> list[str]:
        """Type the pieces with a tab after each; returns the arguments of the program."""
        self._shown = b""
        os.write(self._descriptor, "\t".join([*pieces, ""]).encode() + b"\r")
        self._until(lambda: len(self._calls()) > self._lines)
        self._until(lambda: READY in self._shown)
        self._lines += 1
        return list(json.loads(self._calls()[-1]))

    def _calls(self) -> list[str]:
        return self._told.read_text().splitlines() if self._told.exists() else []

    def _until(self, holds: Callable[[], bool]) -> None:
        due = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < due, self._shown.decode(errors="replace")
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self._shown += os.read(self._descriptor, 65536)


@contextmanager
def on_a_terminal(shell: str, folder: Path, **environment: str) -> Iterator[Terminal]:
    told = folder / "told"
    program = folder / "bin" / "rollbook"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, told=str(told)))
    program.chmod(0o755)
    rc = folder / "rc"
    rc.write_text(RC[shell].format(script=rollbook("completion", shell)))
    words, more = called(shell, rc)
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    process = subprocess.Popen(
        # A session leader that opens a terminal owns it, which fish needs.
        ["sh", "-c", f'exec "$@" <{name} >{name} 2>&1', "sh", *words],
        start_new_session=True,
        cwd=folder,
        env={
            **os.environ,
            **more,
            **environment,
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "TERM": "xterm",
        },
    )
    try:
        terminal = Terminal(ours, told)
        terminal.wait_until_ready()
        yield terminal
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


def test_commands_options_and_choices_are_completed(shell: str, tmp_path: Path) -> None:
    with on_a_terminal(shell, tmp_path) as terminal:
        assert terminal.completed("rollbook led", "app", "--fra", "nu") == [
            "ledger",
            "append",
            "--frame",
            "nul",
        ]


def test_option_values_that_are_paths_are_completed(shell: str, tmp_path: Path) -> None:
    (tmp_path / "bookie one.conf").touch()
    (tmp_path / "journal-1").mkdir()
    (tmp_path / "journal-1.txt").touch()
    with on_a_terminal(shell, tmp_path) as terminal:
        typed = "rollbook server bookie --config boo", "--journal-dir jou"
        *words, folder = terminal.completed(*typed)
        assert words == ["server", "bookie", "--config", "bookie one.conf", "--journal-dir"]
        assert folder.rstrip("/") == "journal-1"  # Zsh removes its slash at the end of a line.


def test_option_value_after_an_equals_sign_is_completed(shell: str, tmp_path: Path) -> None:
    (tmp_path / "bookie-one.conf").touch()
    (tmp_path / "journal-1").mkdir()
    with on_a_terminal(shell, tmp_path) as terminal:
        assert terminal.completed("rollbook ledger append --frame=nu") == [
            "ledger",
            "append",
            "--frame=nul",
        ]
        typed = "rollbook server bookie --config=boo", "--journal-dir=jou"
        *_, file, folder = terminal.completed(*typed)
        assert file == "--config=bookie-one.conf"
        assert folder.rstrip("/") == "--journal-dir=journal-1"


def test_unknown_click_zsh_script_is_used_unmodified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our script is made from click's, whose version may differ. Without our changes, zsh does not
    complete values after equals signs.
    """
    monkeypatch.setattr(ZshComplete, "source_template", "%(complete_func)s() { true }")
    of_zsh = runpy.run_path(shells.__file__)["_Zsh"]
    assert of_zsh.source_template == ZshComplete.source_template


def test_names_and_flags_with_colons_are_completed(shell: str, tmp_path: Path) -> None:
    """In bash a colon ends a word, and most bookie ids have one."""
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    rollbook("cluster", "init", "--metadata", metadata)
    for name in ("127.0.0.1:3181", "127.0.0.1:4181"):
        folders = "--journal-dir", f"{tmp_path}/{name}/j", "--ledger-dir", f"{tmp_path}/{name}/l"
        rollbook("bookie", "init", "--metadata", metadata, "--bookie-id", name, *folders)
    heal = f"rollbook recovery heal --metadata {metadata} "
    with on_a_terminal(shell, tmp_path) as terminal:
        for begun in ("127.0.0.1:4", "127.0.0.1:4181"):
            assert terminal.completed(heal + begun)[-1] == "127.0.0.1:4181"
        *_, name, option = terminal.completed(heal + "127.0.0.1:3", "--accept-l")
        assert (name, option) == ("127.0.0.1:3181", "--accept-loss")


def test_command_before_the_cursor_is_completed(shell: str, tmp_path: Path) -> None:
    with on_a_terminal(shell, tmp_path) as terminal:
        assert terminal.completed("echo a: | rollbook led", "app") == ["ledger", "append"]
        assert terminal.completed("X=1 rollbook bookie doc", "--list") == [
            "bookie",
            "doctor",
            "--listen",
        ]

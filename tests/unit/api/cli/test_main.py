"""Output and exit codes of the `rollbook` command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from rollbook.api.cli import main as cli
from rollbook.api.cli.click_types import Number, WholeNumber
from rollbook.proto import errors

NOTHING_WAS_CHANGED = "  outcome: not applied: nothing was changed\n"
IT_IS_UNKNOWN = "  outcome: unknown: it may have been done\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollbook.api.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


def test_help_and_version() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert "Commands:" in shown.stdout
    assert run("version").stdout.strip() == run("--version").stdout.split()[-1]


def test_help_does_not_import_heavy_modules() -> None:
    """For example, no `--help` waits for the import of gRPC."""
    program = (
        "import sys, click, json\n"
        "from rollbook.api.cli.main import rollbook\n"
        "def walk(command, name):\n"
        "    context = click.Context(command, info_name=name)\n"
        "    assert command.get_help(context)\n"
        "    for each in getattr(command, 'list_commands', lambda _: [])(context):\n"
        "        walk(command.get_command(context, each), each)\n"
        "walk(rollbook, 'rollbook')\n"
        "print(json.dumps([name for name in sys.modules if name.count('.') <= 2]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    heavy = {"asyncio", "grpc", "google.protobuf", "fastapi", "pydantic", "structlog", "sqlite3"}
    assert not loaded & {*heavy, "kazoo", "prometheus_client", "google_crc32c", "http.client"}


def _commands(group: click.Command) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            if command := group.get_command(context, name):
                yield from _commands(command)


def test_every_list_has_raw_wide_and_name_outputs() -> None:
    lists = [each for each in _commands(cli.rollbook) if (each.help or "").startswith("List ")]
    assert len(lists) >= 9
    for each in lists:
        (output,) = (option for option in each.params if option.name == "output")
        assert isinstance(output.type, click.Choice)
        assert {"raw", "wide", "name"} <= set(output.type.choices), each.help


@pytest.mark.parametrize(
    ("typed", "what", "command"),
    [
        (("nope",), "No such command 'nope'", "rollbook"),
        (("log", "read"), "Missing argument 'LOG'", "rollbook log read"),
        (
            ("completion",),
            "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish",
            "rollbook completion",
        ),
        (
            ("log", "read", "x", "--limit", "k"),
            "Invalid value for '--limit': k is not a whole number from 1 on",
            "rollbook log read",
        ),
        (
            ("ledger", "read", "x"),
            f"Invalid value for 'LEDGER_ID': x is not a whole number from 0 to {2**63 - 1}",
            "rollbook ledger read",
        ),
        (
            ("bench", "append", "--seconds", "0"),
            "Invalid value for '--seconds': 0 is not a number above 0",
            "rollbook bench append",
        ),
        (
            ("bench", "append", "--seconds", "nan"),
            "Invalid value for '--seconds': nan is not a number above 0",
            "rollbook bench append",
        ),
        (
            ("log", "create", "shop", "--retention-age"),
            "Option '--retention-age' requires an argument",
            "rollbook log create",
        ),
        (("log", "--nope"), "No such option '--nope'", "rollbook log"),
        (
            ("debug", "bundle", "--file"),
            "Option '--file' requires an argument",
            "rollbook debug bundle",
        ),
    ],
)
def test_usage_errors_exit_with_2_and_suggest_help(
    typed: tuple[str, ...],
    what: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["rollbook", *typed])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        f"error: {what} [USAGE]\n{NOTHING_WAS_CHANGED}  try: {command} --help\n",
    )


def test_number_options_use_our_own_types() -> None:
    """The error of click's own range type would be `not a valid integer range`."""
    params = [param for each in _commands(cli.rollbook) for param in each.params]
    numbers = [
        each.type for each in params if isinstance(each.type, click.IntRange | click.FloatRange)
    ]
    assert len(numbers) > 30
    assert all(isinstance(each, WholeNumber | Number) for each in numbers)
    assert not [each for each in params if each.type in (click.INT, click.FLOAT)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NoSuchCluster(), 3),
        (errors.ClusterExists(), 4),
        (errors.WrongCluster(), 4),
        (errors.MetadataUnavailable(), 5),
        (errors.ConnectionLost(), 5),
        (errors.Unauthorized(), 6),
        (errors.BadMetadata(), 7),
        (errors.BadConfig(), 2),
        (errors.RollbookError(), 1),
    ],
)
def test_error_families_have_exit_codes(error: errors.RollbookError, code: int) -> None:
    assert cli.exit_code(error) == code


def test_error_other_than_usage_suggests_no_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise click.FileError("orders.txt", "it is a directory")

    monkeypatch.setattr(cli, "rollbook", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    told = f"error: Could not open file 'orders.txt': it is a directory\n{NOTHING_WAS_CHANGED}"
    assert capsys.readouterr().err == told


def test_an_error_is_explained_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise errors.NoSuchCluster(next_step="rollbook cluster init", path="/x")

    monkeypatch.setattr(cli, "rollbook", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "error: No cluster has been initialised here. (path=/x) [CLUSTER_NOT_FOUND]",
        NOTHING_WAS_CHANGED.rstrip(),
        "  try: rollbook cluster init",
    ]


def test_closed_output_pipe_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)  # Like `| head -1` that has exited before we write.
    with os.fdopen(write, "wb") as pipe:
        for arguments in (["--help"], ["version"], ["bookie", "gc", "--help"]):
            command = [sys.executable, "-m", "rollbook.api.cli.main", *arguments]
            done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
            assert (done.returncode, done.stderr) == (0, b""), arguments


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(5, "Input/output error"), 1, f"error: Input/output error [EIO]\n{IT_IS_UNKNOWN}"),
        (OSError("it is odd"), 1, f"error: it is odd\n{IT_IS_UNKNOWN}"),
        (
            OSError(28, "No space left on device"),
            1,
            (
                f"error: No space left on device [ENOSPC]\n{IT_IS_UNKNOWN}"
                "  try: make room on that disk, and type it again\n"
            ),
        ),
        (
            OSError(30, "Read-only file system", "/a/lock"),
            1,
            (
                f"error: Read-only file system (/a/lock) [EROFS]\n{IT_IS_UNKNOWN}"
                "  try: mount that for writing, or name another place\n"
            ),
        ),
        (
            NotADirectoryError(20, "Not a directory", "/a/x"),
            1,
            f"error: Not a directory (/a/x) [ENOTDIR]\n{IT_IS_UNKNOWN}  try: name a directory there\n",
        ),
        (
            PermissionError(13, "Permission denied", "/a"),
            6,
            f"error: Permission denied (/a) [EACCES]\n{IT_IS_UNKNOWN}  try: run it as the user who owns that\n",
        ),
    ],
)
def test_os_errors_are_reported_with_code_and_advice(
    error: OSError,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(**how: object) -> None:
        raise error

    monkeypatch.setattr(cli, "rollbook", refuse)
    monkeypatch.setattr(cli, "_drop_output", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == told


def test_interrupt_during_import_prints_no_traceback() -> None:
    program = (
        "import sys\n"
        "from rollbook.api.cli.entry import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'rollbook.api.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("typed", "is_json"),
    [
        (("log", "nope", "-o", "json"), True),
        (("log", "nope", "--output", "ndjson"), True),
        (("log", "nope", "--output=json"), True),
        (("log", "nope", "-ojson"), True),
        (("log", "nope", "-o", "table"), False),
        (("log", "nope", "--", "-o", "json"), False),
        (("log", "nope", "-o"), False),
    ],
)
def test_errors_have_the_requested_output_format(
    typed: tuple[str, ...],
    is_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SH1."""
    monkeypatch.setattr(sys, "argv", ["rollbook", *typed])
    with pytest.raises(SystemExit):
        cli.main()
    told = capsys.readouterr().err
    if is_json:
        problem = json.loads(told)["error"]
        assert (problem["reason"], problem["outcome"]) == ("USAGE", "not_applied")
    else:
        assert NOTHING_WAS_CHANGED in told

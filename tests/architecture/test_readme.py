"""The commands in the README, on the first pages and in every `--help` work as written."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import click
import pytest

from rollbook.api.cli.main import rollbook
from tests import __main__ as door
from tests import kinds
from tests.architecture.source import ROOT
from tests.support import bookies, processes
from tests.support.bookies import PATIENCE_S, RunningBookie

README = (ROOT / "README.md").read_text()
BOOKIES = (ROOT / "docs" / "bookies.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SHELL_BLOCKS = re.findall(r"^```sh\n(.*?)^```", BOOKIES, re.MULTILINE | re.DOTALL)
LINKS = re.findall(r"\]\((?!http)([^)#]+)\)", README + CONTRIBUTING)
README_LINES, README_BYTES = 120, 7_168
PICTURE_BYTES = 40_960
# A command in a block or in the text, on one line or with backslashes over several lines.
TYPED = re.compile(r"rollbook (?:'[^'\n]*'|[^\n`|&;)\\]|\\\n)+")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("block", SHELL_BLOCKS)
def test_shell_blocks_run_as_written(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-euc", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "instance_id" in done.stdout


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= README_LINES
    assert len(README.encode()) <= README_BYTES


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "Makefile"])
def test_pages_state_how_long_make_check_takes(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "make check" in text
    assert kinds.CHECK_TAKES in " ".join(text.replace("\n#", "\n").split())


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    assert [each.name for each in pictures if each.stat().st_size > PICTURE_BYTES] == []


def test_bookie_started_as_on_the_page_serves_http(tmp_path: Path) -> None:
    """Uses the cluster of the page, but free ports, so that the test can run anywhere."""
    (command,) = re.findall(r"^    (rollbook server bookie (?:.*\\\n)*.*)$", BOOKIES, re.MULTILINE)
    command = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", command)
    script = f"{SHELL_BLOCKS[0]}\nexec {command}"
    environ = {**os.environ, "PATH": PATH}
    with processes.family() as children:
        child = children.start("sh", "-euc", f"cd {tmp_path}; {script}", environment=environ)
        while not (line := child.line(PATIENCE_S)).startswith("ready: bookie bk-1 "):
            pass
        bookie = RunningBookie(child)
        pages = f"http://{line.partition('http on ')[2].partition(')')[0]}"
        with urlopen(f"{pages}/metrics", timeout=PATIENCE_S) as found:
            assert b"rollbook_bookie_" in found.read()
        with urlopen(f"{pages}/openapi.json", timeout=PATIENCE_S) as found:
            assert "/api/v1/bookie/status" in json.load(found)["paths"]
        assert bookies.address_in(line).port
        bookie.terminate()
        assert bookie.wait() == 0


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_existing_files(link: str) -> None:
    assert (ROOT / link).exists()


def _commands(
    group: click.Command = rollbook, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            if command := group.get_command(context, name):
                yield from _commands(command, (*words, name))


def _help_of(command: click.Command) -> str:
    context = click.Context(command, terminal_width=1000, help_option_names=["-h", "--help"])
    return command.get_help(context)


def _typed(text: str) -> list[str]:
    return [" ".join(each.replace("\\\n", " ").split()) for each in TYPED.findall(text)]


def test_every_help_ends_in_three_examples_that_parse() -> None:
    """The examples use existing commands with valid flags and values."""
    for words, command in _commands():
        where = f"rollbook {' '.join(words)} --help"
        options, found, text = _help_of(command).partition("\n  Examples:\n")
        assert found, where
        assert "--help" in options, f"the examples of {where} must come after its options"
        assert "\n\n" not in text.rstrip(), f"{where} must end with its examples"
        lines = text.replace("\\\n", "").splitlines()
        assert sum("rollbook" in line for line in lines) >= 3, where
        for line in _typed(text):
            _parse(line, where)


def test_command_tree_in_the_design_matches_the_commands() -> None:
    design = (ROOT / "api" / "cli" / "DESIGN.md").read_text()
    (tree,) = re.findall(r"^```text\n(rollbook .*?)^```", design, re.MULTILINE | re.DOTALL)
    found = {words for words, each in _commands() if not isinstance(each, click.Group)}
    assert set(_told_by(tree)) == found


def _told_by(tree: str) -> Iterator[tuple[str, ...]]:
    """Each line has a group if it changes, its commands, and after two spaces their purpose."""
    groups = {words for words, each in _commands() if isinstance(each, click.Group)}
    group: tuple[str, ...] = ()
    for line in tree.splitlines():
        first, *rest = re.split(r"  +", line.strip())
        words = tuple(first.split())
        if words[0] == "rollbook":
            group, words = words[1:2], words[2:]
            if group not in groups:
                yield group
            elif not words:
                words = tuple(rest[0].split())
        within = group
        if words and (*group, words[0]) in groups:
            within, words = (*group, words[0]), words[1:]
        for word in words:
            yield (*within, word)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/operations.md", "docs/bookies.md", "docs/coming-from.md"]
)
def test_commands_on_pages_parse(page: str) -> None:
    found = _typed((ROOT / page).read_text())
    assert len(found) > 3
    for line in found:
        _parse(line, page)


@pytest.mark.parametrize("line", re.findall(r"^\| `([a-z][^`]+)` \|", CONTRIBUTING, re.MULTILINE))
def test_kinds_of_tests_in_contributing_parse(line: str) -> None:
    door._parser().parse_args(line.split())


def _parse(line: str, where: str) -> None:
    words = shlex.split(re.split("[<>…]", line)[0])
    command: click.Command = rollbook
    context, rest = click.Context(rollbook), words[1:]
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command, context = found, click.Context(found, parent=context, info_name=name)
        if "--help" not in rest and not isinstance(command, click.Group):
            command.make_context(context.info_name, list(rest), parent=context.parent)
    except click.UsageError as error:
        raise AssertionError(f"{where}: {line}: {error.format_message()}") from error

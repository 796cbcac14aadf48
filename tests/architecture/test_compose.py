"""`compose/compose.yaml` and its neighbours say what the commands, settings and files of the repository are."""

import re
from dataclasses import fields

import pytest

from rollbook.api.cli.server.recovery import RecoveryServerConfig
from rollbook.bookie.config import BookieConfig
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.runtime.config import variables_of_flags
from tests.architecture.source import ROOT
from tests.architecture.test_readme import _parse

COMPOSE = (ROOT / "compose" / "compose.yaml").read_text()
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
CONTAINERFILE = (ROOT / "compose" / "Containerfile").read_text()
COMMANDS = re.findall(r"^ +command: (?:&\S+ )?((?:server|cluster) .+)$", COMPOSE, re.MULTILINE)
SERVERS = (BookieConfig, LogServerConfig, RecoveryServerConfig)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_can_be_typed(command: str) -> None:
    _parse(f"rollbook {command}", "compose.yaml")


def test_every_part_is_started() -> None:
    assert sorted(each.split()[1] for each in COMMANDS) == ["bookie", "init", "log", "recovery"]


def test_each_variable_is_a_setting() -> None:
    known = {name for each in SERVERS for name in variables_of_flags(each).values()}
    used = set(re.findall(r"(?<!\{)\b(ROLLBOOK_[A-Z_]+):", COMPOSE))
    assert used
    assert used - known == set()
    for server in SERVERS:  # All of them get this one from the block that they share.
        assert "insecure" in {field.name for field in fields(server)}


def test_variables_of_the_file_are_on_the_page() -> None:
    assert [
        each for each in re.findall(r"\$\{([A-Z_]+):-", COMPOSE) if f"`{each}`" not in DEPLOY
    ] == []


def test_ports_are_published_on_loopback_alone() -> None:
    ports = re.findall(r'^ +ports: \["([^"]+)"\]$', COMPOSE, re.MULTILINE)
    assert len(ports) == COMPOSE.count(" ports:") == 3
    assert all(each.startswith("127.0.0.1:") for each in ports)


def test_each_mounted_file_is_there() -> None:
    mounted = re.findall(r"(\./[^:\s\"]+):/", COMPOSE)
    assert mounted
    assert [each for each in mounted if not (ROOT / "compose" / each).exists()] == []


def test_the_image_copies_what_the_engine_is_sent() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    sent = set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    copied = {name for names in copies for name in names.split()}
    assert copied == sent
    assert [name for name in copied if not (ROOT / name).exists()] == []

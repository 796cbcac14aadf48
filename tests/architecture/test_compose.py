"""`compose/compose.yaml` and its neighbours match the repository's commands, settings and files."""

import json
import re
import subprocess
from dataclasses import fields

import pytest

from rollbook.api.cli.server.recovery import RecoveryServerConfig
from rollbook.bookie.config import BookieConfig
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.runtime.config import variables_of_flags
from tests.architecture.source import ROOT
from tests.architecture.test_readme import _parse
from tests.deploy import images
from tests.tally import missing_piece

COMPOSE = (ROOT / "compose" / "compose.yaml").read_text()
TLS = (ROOT / "compose" / "compose.tls.yaml").read_text()
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
CONTAINERFILES = [
    (ROOT / "compose" / each).read_text() for each in ("Containerfile", "spark/Containerfile")
]
_COMMAND = re.compile(r"^ +command: (?:&\S+ )?((?:server|cluster|spark) .+)$", re.MULTILINE)
COMMANDS = _COMMAND.findall(COMPOSE)
SERVERS = (BookieConfig, LogServerConfig, RecoveryServerConfig)


@pytest.mark.parametrize("command", [*COMMANDS, *_COMMAND.findall(TLS)])
def test_compose_commands_parse(command: str) -> None:
    _parse(f"rollbook {command}", "compose.yaml")


def test_compose_starts_every_server() -> None:
    assert sorted(each.split()[1] for each in COMMANDS) == [
        "bookie",
        "export",
        "init",
        "log",
        "recovery",
    ]


def test_compose_variables_are_settings() -> None:
    known = {name for each in SERVERS for name in variables_of_flags(each).values()}
    used = set(re.findall(r"(?<!\{)\b(ROLLBOOK_[A-Z_]+):", COMPOSE + TLS)) - {
        "ROLLBOOK_IMAGE",
        "ROLLBOOK_SERVER",
    }
    assert {"ROLLBOOK_METADATA", "ROLLBOOK_PEER_AUTHORITIES"} <= used
    assert used - known == set()
    for server in SERVERS:  # `ROLLBOOK_INSECURE` is in the block that all servers share.
        assert "insecure" in {field.name for field in fields(server)}


def test_compose_variables_are_on_the_deploy_page() -> None:
    assert [
        each for each in re.findall(r"\$\{([A-Z_]+):-", COMPOSE + TLS) if f"`{each}`" not in DEPLOY
    ] == []


def test_ports_are_published_on_loopback_only() -> None:
    lists = re.findall(r"^ +ports: (\[.+\])$", COMPOSE, re.MULTILINE)
    assert len(lists) == COMPOSE.count(" ports:") == 3
    assert " ports:" not in TLS
    ports = [each for text in lists for each in json.loads(text)]
    assert all(each.startswith("127.0.0.1:${") for each in ports)


def test_mounted_files_exist() -> None:
    mounted = re.findall(r"(\.{1,2}/[^:\s\"]+):/", COMPOSE + TLS)
    assert mounted
    assert [each for each in mounted if not (ROOT / "compose" / each).exists()] == []


def test_images_copy_exactly_the_unignored_files() -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    sent = set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))
    text = "".join(CONTAINERFILES)
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    copied = {name for names in copies for name in names.split()}
    assert copied == sent
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "profiles", [(), ("monitoring",), ("example",), ("spark",), ("monitoring", "example", "spark")]
)
@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "compose.tls.yaml")])
def test_docker_compose_accepts_files_with_all_profiles(
    files: tuple[str, ...], profiles: tuple[str, ...]
) -> None:
    program = images.FOLDER / "docker-compose"
    if not program.exists():
        how = "python -m tests deploy --prepare"
        pytest.skip(missing_piece("compose", f"there is no {program}", how))
    words = [*(f"--file={each}" for each in files), *(f"--profile={each}" for each in profiles)]
    done = subprocess.run(
        [program, *words, "config", "--quiet"],
        cwd=ROOT / "compose",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_tls_commands_differ_from_plain_ones_in_flags_only() -> None:
    """compose.tls.yaml replaces whole commands, so the common part is written twice."""
    (plain,) = {each for each in COMMANDS if each.startswith("server bookie")}
    encrypted, job = _COMMAND.findall(TLS)
    assert [each for each in COMMANDS if each == job[: len(each)]] == [job.partition(" --tls")[0]]
    doors = "--listen 127.0.0.1:3181 --tls-listen :3182 --http :8001 --http-tls"
    assert encrypted == plain.replace("--listen :3181 --http :8001", doors)

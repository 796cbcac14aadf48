"""Units of `compose/systemd` start existing commands and are as restricted as `docs/deploy.md`
says.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rollbook.api.cli.server.bookie_settings import load_settings
from rollbook.api.cli.server.log import load_log_settings
from rollbook.api.cli.server.recovery import load_recovery_settings
from tests.architecture.source import ROOT
from tests.architecture.test_readme import _parse
from tests.tally import missing_piece

FOLDER = ROOT / "compose" / "systemd"
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
LOADERS: Final[dict[str, Callable[[str], object]]] = {
    "bookie": load_settings,
    "log": load_log_settings,
    "recovery": load_recovery_settings,
}
UNITS = {kind: (FOLDER / f"rollbook-{kind}.service").read_text() for kind in LOADERS}
EXPOSURE_MAX = 20  # On a scale to 100; systemd prints it as 2.0.
OLDEST = 252  # The first release with all settings of the units and `security --offline`.


def _values(kind: str, setting: str) -> list[str]:
    return re.findall(rf"^{setting}=(.*)$", UNITS[kind], re.MULTILINE)


def test_there_is_a_unit_for_each_server() -> None:
    assert sorted(each.name for each in FOLDER.glob("*.service")) == [
        f"rollbook-{kind}.service" for kind in sorted(LOADERS)
    ]


@pytest.mark.parametrize("kind", LOADERS)
def test_unit_command_parses(kind: str) -> None:
    (command,) = _values(kind, "ExecStart")
    program, _, arguments = command.partition(" ")
    assert program == "/opt/rollbook/bin/rollbook"
    assert arguments == f"server {kind} --config /etc/rollbook/{kind}.toml"
    _parse(f"rollbook {arguments}", f"rollbook-{kind}.service")


@pytest.mark.parametrize("kind", LOADERS)
def test_settings_of_the_deploy_page_load(kind: str, tmp_path: Path) -> None:
    """Uses the loader of the unit's command, which checks each name and value."""
    (text,) = re.findall(
        rf"^```toml\n# /etc/rollbook/{kind}\.toml\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL
    )
    file = tmp_path / f"{kind}.toml"
    file.write_text(text)
    LOADERS[kind](str(file))


def test_bookie_folders_of_the_page_are_in_its_state_directory() -> None:
    assert _values("bookie", "StateDirectory") == ["rollbook"]
    folders = re.findall(r'"(/\S+)"', DEPLOY[DEPLOY.index("journal_dir") :].partition("```")[0])
    assert len(folders) == 2
    assert all(each.startswith("/var/lib/rollbook/") for each in folders)


@pytest.mark.parametrize("kind", LOADERS)
def test_units_wait_for_readiness_and_restart_always(kind: str) -> None:
    assert _values(kind, "Type") == ["notify"]
    assert _values(kind, "Restart") == ["always"]


@pytest.mark.parametrize("kind", LOADERS)
def test_refused_system_calls_return_eperm(kind: str) -> None:
    """Bookies call `cachestat`, which systemd before 255 does not know and therefore refuses."""
    assert _values(kind, "SystemCallFilter")[0] == "@system-service"
    assert _values(kind, "SystemCallErrorNumber") == ["EPERM"]


@pytest.mark.parametrize("kind", LOADERS)
def test_user_of_unit_is_created_by_sysusers(kind: str) -> None:
    (line,) = re.findall(r"^u .*$", (FOLDER / "rollbook.sysusers").read_text(), re.MULTILINE)
    assert _values(kind, "User") == _values(kind, "Group") == [line.split()[1]]


def test_deploy_page_installs_each_file_of_the_folder() -> None:
    assert "compose/systemd/*.service" in DEPLOY
    others = [each.name for each in FOLDER.iterdir() if each.suffix != ".service"]
    assert len(others) == 2
    assert [each for each in others if f"compose/systemd/{each}" not in DEPLOY] == []


def test_systemd_accepts_units_and_rates_exposure_low(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None or _version(program) < OLDEST:
        how = "apt-get install systemd"
        why = f"there is no systemd-analyze of release {OLDEST} or newer"
        pytest.skip(missing_piece("systemd", why, how))
    here = Path(sys.executable).parent / "rollbook"  # `verify` requires an existing program.
    for kind, text in UNITS.items():
        unit = tmp_path / f"rollbook-{kind}.service"
        unit.write_text(text.replace("/opt/rollbook/bin/rollbook", str(here)))
        for command in (
            ["verify", "--recursive-errors=no", str(unit)],
            ["security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit)],
        ):
            done = subprocess.run(
                [program, *command], capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Unknown" not in done.stderr, done.stderr


def _version(program: str) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return int(re.findall(r"\d+", said.stdout)[0])

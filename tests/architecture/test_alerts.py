"""Alerts of Prometheus: what they ask for exists, each has a procedure, and each is seen firing and silent."""

import re
import shutil
import subprocess

import pytest

from tests.architecture.source import ROOT
from tests.architecture.test_dashboard import faults
from tests.tally import missing_piece

FOLDER = ROOT / "compose" / "prometheus"
RULES = (FOLDER / "alerts.yml").read_text()
CASES = (FOLDER / "alerts_test.yml").read_text()
ALERTS = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", RULES))


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_asks_for_what_there_is(alert: str) -> None:
    assert not faults(re.sub(r"\b(on|by) \((instance|job)\)", "", ALERTS[alert]), "")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_procedure(alert: str) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert f"runbook: docs/operations.md#{alert.lower()}\n" in RULES
    assert f"\n### {alert}\n\n" in page


def test_no_procedure_is_left_over() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^### (Rollbook\w+)$", page, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_seen_firing_and_silent(alert: str) -> None:
    for case, outcome in (("fires", r"\n +- exp_labels:"), ("is silent", r" \[\]\n")):
        (found,) = re.findall(rf"- name: {alert} {case}\n(?:.*\n)*?(?=  - name|\Z)", CASES)
        assert f"alertname: {alert}\n" in found
        assert re.search(rf"exp_alerts:{outcome}", found)


def test_prometheus_takes_them_and_sees_what_they_say() -> None:
    program = shutil.which("promtool")
    if program is None:
        how = "apt-get install prometheus"
        pytest.skip(missing_piece("promtool", "there is no promtool", how))
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "config", "--syntax-only", "prometheus.tls.yml"],  # Its certificates are nowhere.
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(
            [program, *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

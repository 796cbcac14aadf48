"""Prometheus alerts use existing metrics, and each has a runbook and test cases."""

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
def test_alert_expression_uses_existing_metrics(alert: str) -> None:
    assert not faults(re.sub(r"\b(on|by) \((instance|job)\)", "", ALERTS[alert]), "")


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert: str) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert f"runbook: docs/operations.md#{alert.lower()}\n" in RULES
    assert f"\n### {alert}\n\n" in page


def test_runbooks_match_the_alerts() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^### (Rollbook\w+)$", page, re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_firing_and_a_silent_case(alert: str) -> None:
    for case, outcome in (("fires", r"\n +- exp_labels:"), ("is silent", r" \[\]\n")):
        (found,) = re.findall(rf"- name: {alert} {case}\n(?:.*\n)*?(?=  - name|\Z)", CASES)
        assert f"alertname: {alert}\n" in found
        assert re.search(rf"exp_alerts:{outcome}", found)


def test_promtool_accepts_configs_and_passes_rule_cases() -> None:
    program = shutil.which("promtool")
    if program is None:
        how = "apt-get install prometheus"
        pytest.skip(missing_piece("promtool", "there is no promtool", how))
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "config", "--syntax-only", "prometheus.tls.yml"],  # There are no certificates.
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(
            [program, *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr

"""Schemathesis over our OpenAPI (`make schemathesis`), against a `rollbook dev` of its own: all its checks but
what `schemathesis.toml` takes out, with reasons. A run that sent too little has failed, too."""

import json
import os
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.support.dev import running_dev
from tests.tally import Tally, missing_piece

PROGRAM: Final = Path("build/schemathesis/bin/schemathesis").absolute()
_FOLDER: Final = Path(__file__).parent
_STANDING: Final = "/v1/namespaces/default/logs/standing"  # As in `schemathesis_hooks.py`.
_PATIENCE_S: Final = 40.0  # Longer than a server lets anybody wait who names no time.
# Of what it may make up for an operation it makes half: where answers teach it nothing, it ends early.
_MADE_UP_OF_ALLOWED: Final = 0.5


def run(cases: int, seed: int) -> Tally:
    if not PROGRAM.exists():
        why = missing_piece("schemathesis", f"{PROGRAM} is not there", "make schemathesis")
        return Tally("requests", skipped=[why])
    with tempfile.TemporaryDirectory() as folder, running_dev(Path(folder) / "data", 1) as dev:
        place = next(line for line in dev.said.splitlines() if line.startswith("rest "))
        base = place.split()[1].removesuffix("/v1")
        with urllib.request.urlopen(
            urllib.request.Request(base + _STANDING, method="PUT"), timeout=_PATIENCE_S
        ):
            pass
        report = _send(base, cases, seed, Path(folder) / "report.json")
        with urllib.request.urlopen(f"{base}/healthz", timeout=_PATIENCE_S):
            pass  # It serves as before when all is over.
    return _judged(report, cases)


def _send(base: str, cases: int, seed: int, report: Path) -> dict[str, Any]:
    """What it says of failures goes where all other output goes."""
    operations = sum(map(len, _json(f"{base}/openapi.json")["paths"].values()))
    each = 1 + int(cases / operations / _MADE_UP_OF_ALLOWED)
    command = (
        *(PROGRAM, "--config-file", _FOLDER / "schemathesis.toml", "run", f"{base}/openapi.json"),
        *("--max-examples", str(each), "--seed", str(seed), "--request-timeout", str(_PATIENCE_S)),
        *("--continue-on-failure", "--no-shrink", "--no-color"),
        *("--report", "json", "--report-json-path", report),
    )
    hooks = {"SCHEMATHESIS_HOOKS": str(_FOLDER / "schemathesis_hooks.py")}
    subprocess.run(command, env={**os.environ, **hooks}, cwd=report.parent, check=False)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _judged(report: dict[str, Any], cases: int) -> Tally:
    found = report["test_cases"]
    failed = found["with_failures"] + found["errored"]
    tally = Tally("requests", passed=found["generated"] - failed, failed=failed)
    tested, wanted = report["operations"]["tested"], report["operations"]["total"]
    if not failed and (tested < wanted or tally.passed < cases or report["exit_code"]):
        told = f"{tested} of {wanted} operations, {tally.passed:,} of {cases:,} requests"
        print(f"too little was sent: {told}")
        tally.failed += 1
    return tally


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
        return json.load(answer)

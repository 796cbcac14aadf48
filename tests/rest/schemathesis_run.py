"""Runs Schemathesis on our OpenAPI (`make schemathesis`, also with `OF=cluster`) and a `rollbook
dev`.

Uses all checks except those that `schemathesis.toml` excludes with reasons. A run that sent too few
requests fails, too.
"""

import json
import os
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.rest.run import Door, Subject
from tests.support.dev import running_dev
from tests.tally import Tally, missing_piece

PROGRAM: Final = Path("build/schemathesis/bin/schemathesis").absolute()
_FOLDER: Final = Path(__file__).parent
_PATIENCE_S: Final = 40.0  # Longer than the server's default time-out.
# Schemathesis must make at least half of its cases: it stops early if responses teach it nothing.
_MADE_UP_OF_ALLOWED: Final = 0.5


def run(subject: Subject, cases: int, seed: int) -> Tally:
    if not PROGRAM.exists():
        why = missing_piece("schemathesis", f"{PROGRAM} is not there", "make schemathesis")
        return Tally("requests", skipped=[why])
    with (
        tempfile.TemporaryDirectory() as name,
        running_dev(Path(name) / "data", subject.bookies) as dev,
        closing(Door(subject.base(dev.said))) as door,
    ):
        folder = Path(name) / "data"
        known = subject.begin_for_schemathesis(door, folder)
        hooks = {
            "SCHEMATHESIS_HOOKS": str(_FOLDER / subject.hooks),
            "ROLLBOOK_KNOWN": json.dumps(known),
        }
        door.close()
        report = _send(door, cases, seed, Path(name) / "report.json", hooks)
        door.close()
        wrong = subject.afterwards(door, folder)
    tally = _judged(report, cases)
    for text in wrong:
        tally.failed += 1
        print(text)
    return tally


def _send(door: Door, cases: int, seed: int, report: Path, hooks: dict[str, str]) -> dict[str, Any]:
    """Runs Schemathesis, whose reports of failures go to the normal output."""
    operations = sum(map(len, door.json("GET", "/openapi.json")["paths"].values()))
    each = 1 + int(cases / operations / _MADE_UP_OF_ALLOWED)
    where = f"http://{door.place}/openapi.json"
    command = (
        PROGRAM,
        "--config-file",
        _FOLDER / "schemathesis.toml",
        "run",
        where,
        "--max-examples",
        str(each),
        "--seed",
        str(seed),
        "--request-timeout",
        str(_PATIENCE_S),
        "--continue-on-failure",
        "--no-shrink",
        "--no-color",
        "--report",
        "json",
        "--report-json-path",
        report,
    )
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

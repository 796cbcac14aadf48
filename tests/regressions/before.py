"""Runs the regression tests of this tree against the product of another commit, which has the
defects.

A temporary worktree of that commit gets the `tests/` of this tree. A test that fails there detects
its defect. A test that cannot be run there proves nothing and counts like one that passes: an
import or a fixture fails, or a helper needs something that the older product lacks.

`--keep` writes the result to DEFECTS.md beside this file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from tests.regressions.defects import Defect, Register
from tests.tally import Tally

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = Path(__file__).with_name("DEFECTS.md")
# Raised in a helper, these errors mean that the older product lacks what the helper uses.
_LACKS: Final = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError")


class BaseVerdict(Enum):
    FAILED = "fails"
    PASSED = "PASSES"
    NOT_RUN = "CANNOT BE RUN"


Case = tuple[str, str]
"""The module and function of a test in JUnit's XML."""


def case_of(nodeid: str) -> Case:
    path, _, name = nodeid.partition("::")
    return path.removesuffix(".py").replace("/", "."), name


def verdicts(report: str) -> dict[Case, BaseVerdict]:
    """The verdict on each test in JUnit's XML."""
    found: dict[Case, BaseVerdict] = {}
    for case in ET.fromstring(report).iter("testcase"):  # Trusted: pytest wrote it.
        name = case.get("classname", ""), case.get("name", "")
        failure = case.find("failure")
        if failure is not None:
            found[name] = _verdict_on(failure.text or "")
        elif case.find("error") is not None or case.find("skipped") is not None:
            found[name] = BaseVerdict.NOT_RUN
        else:
            found[name] = BaseVerdict.PASSED
    return found


def _verdict_on(traceback: str) -> BaseVerdict:
    """The last line of the form `file:line: error` shows where the test failed."""
    ends = [line for line in traceback.splitlines() if line[:1].isalpha() or line[:1] == "/"]
    where, _, error = ends[-1].rpartition(": ") if ends else ("", "", "")
    is_in_helper = where.startswith("tests/") and not where.startswith("tests/regressions/test_")
    return BaseVerdict.NOT_RUN if is_in_helper and error in _LACKS else BaseVerdict.FAILED


def judge(
    register: Register, found: Mapping[Case, BaseVerdict]
) -> Sequence[tuple[Defect, BaseVerdict]]:
    """The verdict on each defect, which shows if any of its tests fails."""
    of_defect: dict[str, list[BaseVerdict]] = defaultdict(list)
    for nodeid, name in register.of_test.items():
        of_defect[name].append(found.get(case_of(nodeid), BaseVerdict.NOT_RUN))
    order = (BaseVerdict.FAILED, BaseVerdict.PASSED, BaseVerdict.NOT_RUN)
    return [
        (register.defects[name], min(of_defect[name], key=order.index))
        for name in sorted(of_defect)
    ]


def run(commit: str, register: Register, *pytest_arguments: str, keeps: bool) -> Tally:
    """Prints for each defect in `register` the verdict of its tests on that commit."""
    tally = Tally("defects that show there")
    with product_of(commit) as (folder, full_commit):
        report = folder / "regressions.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/regressions",
            "-q",
            "--no-header",
            "--no-summary",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
            *pytest_arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": str(folder / ".import-root")}
        subprocess.run(command, cwd=folder, env=environment, check=False)
        told = report.read_text() if report.exists() else "<none/>"  # pytest was killed.
        judged = judge(register, verdicts(told))
    for each, verdict in judged:
        sys.stdout.write(f"{verdict.value:<15}{each.name}: {each.seen}\n")
        tally.passed += verdict is BaseVerdict.FAILED
        tally.failed += verdict is not BaseVerdict.FAILED
    if keeps:
        TABLE.write_text(table(full_commit, judged))
    return tally


def table(commit: str, judged: Sequence[tuple[Defect, BaseVerdict]]) -> str:
    rows = "".join(
        f"| `{each.name}` | {each.seen} | {verdict.value} |\n" for each, verdict in judged
    )
    return f"""# Defects

Each has a test of its name in this folder. The last column says what that test comes to on commit
`{commit[:8]}`, before any of them was mended. `python -m tests regressions --before {commit[:8]} --keep` writes this page.

| defect | what was seen | there |
|---|---|---|
{rows}"""


@contextmanager
def product_of(commit: str) -> Iterator[tuple[Path, str]]:
    """A worktree of that commit with the tests of this tree, and the commit's full hash.

    Raises `CalledProcessError`.
    """
    full = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="before-") as temporary:
        folder = Path(temporary) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(folder), full)
        try:
            shutil.rmtree(folder / "tests")
            shutil.copytree(
                ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__")
            )
            _link_packages(folder)
            yield folder, full
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _link_packages(folder: Path) -> None:
    """Links the packages like an editable install (`hatch_build.py`)."""
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    sources = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    links = {**{folder / each: target for each, target in sources.items()}}
    links[folder / "api" / "package_init.py"] = "rollbook/__init__.py"
    for source, target in links.items():
        link = folder / ".import-root" / target
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()

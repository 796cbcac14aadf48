"""Runs the regression tests of this tree against the product of another commit, where each defect has to show.

A worktree of that commit is made for as long as they run, and its `tests/` gives way to the present ones. A test that
fails there can see its defect. A test that cannot be run there shows nothing, and counts as one that passes: a module
that it imports cannot be imported, its fixtures fail, or a helper of it lacks something in the older product.

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
# In a helper, they say that the older product lacks what the helper uses.
_LACKS: Final = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError")


class BaseVerdict(Enum):
    FAILED = "fails"
    PASSED = "PASSES"
    NOT_RUN = "CANNOT BE RUN"


Case = tuple[str, str]
"""A test as JUnit's XML names it: module and function."""


def case_of(nodeid: str) -> Case:
    path, _, name = nodeid.partition("::")
    return path.removesuffix(".py").replace("/", "."), name


def verdicts(report: str) -> dict[Case, BaseVerdict]:
    """From JUnit's XML, by test."""
    found: dict[Case, BaseVerdict] = {}
    for case in ET.fromstring(report).iter("testcase"):  # Our own pytest wrote it.
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
    """Its last line of the form `file:line: error` says where the test failed."""
    ends = [line for line in traceback.splitlines() if line[:1].isalpha() or line[:1] == "/"]
    where, _, error = ends[-1].rpartition(": ") if ends else ("", "", "")
    is_in_helper = where.startswith("tests/") and not where.startswith("tests/regressions/test_")
    return BaseVerdict.NOT_RUN if is_in_helper and error in _LACKS else BaseVerdict.FAILED


def judge(
    register: Register, found: Mapping[Case, BaseVerdict]
) -> Sequence[tuple[Defect, BaseVerdict]]:
    """By defect: it shows if one of its tests fails."""
    of_defect: dict[str, list[BaseVerdict]] = defaultdict(list)
    for nodeid, name in register.of_test.items():
        of_defect[name].append(found.get(case_of(nodeid), BaseVerdict.NOT_RUN))
    order = (BaseVerdict.FAILED, BaseVerdict.PASSED, BaseVerdict.NOT_RUN)
    return [
        (register.defects[name], min(of_defect[name], key=order.index))
        for name in sorted(of_defect)
    ]


def run(commit: str, register: Register, *pytest_arguments: str, keeps: bool) -> Tally:
    """`register`: with the tests that are meant. Says of each defect what its tests come to there."""
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
        told = report.read_text() if report.exists() else "<none/>"  # Its pytest was ended.
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
    """A worktree of that commit with the tests of this one, and the commit's full name. Raises `CalledProcessError`."""
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
    """As an editable install does (`hatch_build.py`)."""
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

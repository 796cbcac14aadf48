"""A failed test shows a defect on an older commit unless a helper or fixture failed."""

import pytest

from tests.regressions.before import BaseVerdict, case_of, judge, table, verdicts
from tests.regressions.defects import Defect, Register

CASE = '<testsuite><testcase classname="tests.regressions.test_a" name="test_x[1]">{}</testcase></testsuite>'


@pytest.mark.parametrize(
    ("inside", "verdict"),
    [
        ("", BaseVerdict.PASSED),
        ('<error message="no fixture"/>', BaseVerdict.NOT_RUN),
        ('<skipped message="no disk"/>', BaseVerdict.NOT_RUN),
        (
            "<failure>E  x\n\ntests/regressions/test_a.py:9: AttributeError</failure>",
            BaseVerdict.FAILED,
        ),
        ("<failure>\n/usr/lib/timeouts.py:1: TimeoutError</failure>", BaseVerdict.FAILED),
        ("<failure>\ntests/support/processes.py:86: ChildFailed</failure>", BaseVerdict.FAILED),
        ("<failure>\ntests/support/pages.py:8: AttributeError</failure>", BaseVerdict.NOT_RUN),
        (
            "<failure>\ntests/unit/x.py:8: TypeError\n--- Captured log ---\n2026 started</failure>",
            BaseVerdict.NOT_RUN,
        ),
    ],
)
def test_verdict_depends_on_where_a_test_failed(inside: str, verdict: BaseVerdict) -> None:
    nodeid = "tests/regressions/test_a.py::test_x[1]"
    assert verdicts(CASE.format(inside)) == {case_of(nodeid): verdict}


def test_a_defect_shows_if_one_of_its_tests_fails() -> None:
    register = Register()
    for name in ("mended", "seen", "unknown"):
        register.defects[name] = Defect(name, f"Somebody met {name}.")
    register.of_test = {
        "t.py::a": "seen",
        "t.py::b": "seen",
        "t.py::c": "mended",
        "t.py::d": "unknown",
    }
    found = {
        ("t", "a"): BaseVerdict.PASSED,
        ("t", "b"): BaseVerdict.FAILED,
        ("t", "c"): BaseVerdict.PASSED,
    }
    judged = judge(register, found)
    assert [verdict for _, verdict in judged] == [
        BaseVerdict.PASSED,
        BaseVerdict.FAILED,
        BaseVerdict.NOT_RUN,
    ]
    assert "| `seen` | Somebody met seen. | fails |" in table("0123456789", judged)

"""A test shows a defect on an older commit if it fails there by itself, and not for want of what it needs."""

import pytest

from tests.regressions.before import Verdict, case_of, judge, table, verdicts
from tests.regressions.defects import Defect, Register

CASE = '<testsuite><testcase classname="tests.regressions.test_a" name="test_x[1]">{}</testcase></testsuite>'


@pytest.mark.parametrize(
    ("inside", "verdict"),
    [
        ("", Verdict.PASSED),
        ('<error message="no fixture"/>', Verdict.NOT_RUN),
        ('<skipped message="no disk"/>', Verdict.NOT_RUN),
        (
            "<failure>E  x\n\ntests/regressions/test_a.py:9: AttributeError</failure>",
            Verdict.FAILED,
        ),
        ("<failure>\n/usr/lib/timeouts.py:1: TimeoutError</failure>", Verdict.FAILED),
        ("<failure>\ntests/support/processes.py:86: ChildFailed</failure>", Verdict.FAILED),
        ("<failure>\ntests/support/pages.py:8: AttributeError</failure>", Verdict.NOT_RUN),
        (
            "<failure>\ntests/unit/x.py:8: TypeError\n--- Captured log ---\n2026 started</failure>",
            Verdict.NOT_RUN,
        ),
    ],
)
def test_what_a_helper_lacks_shows_nothing(inside: str, verdict: Verdict) -> None:
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
    found = {("t", "a"): Verdict.PASSED, ("t", "b"): Verdict.FAILED, ("t", "c"): Verdict.PASSED}
    judged = judge(register, found)
    assert [verdict for _, verdict in judged] == [Verdict.PASSED, Verdict.FAILED, Verdict.NOT_RUN]
    assert "| `seen` | Somebody met seen. | fails |" in table("0123456789", judged)

"""The table at the end of an `interop` run."""

from types import SimpleNamespace

from tests.interop.matrix import Matrix

OURS = "tests/interop/test_our_client.py::test_java_reads_what_we_wrote[javas-v3-3/2/2-MAC]"
THEIRS = "tests/interop/test_our_client.py::test_we_follow_a_java_writer[mixed-v2]"
REPAIRED = (
    "tests/interop/test_autorecovery.py::test_our_recovery_copies_ledgers_of_a_lost_java_bookie"
)
ALONE = "tests/interop/test_ledgers.py::test_a_deleted_ledger_is_gone[v2]"


def report(nodeid: str, outcome: str, when: str = "call") -> SimpleNamespace:
    return SimpleNamespace(
        nodeid=nodeid, when=when, passed=outcome == "passed", failed=outcome == "failed"
    )


def test_cell_counts_passed_tests_or_failures() -> None:
    matrix = Matrix("rollbook")
    for when in ("setup", "call", "teardown"):
        matrix.pytest_runtest_logreport(report(OURS, "passed", when))
    matrix.pytest_runtest_logreport(report(THEIRS, "passed"))
    matrix.pytest_runtest_logreport(report(THEIRS, "failed", "setup"))
    matrix.pytest_runtest_logreport(report(ALONE, "passed"))
    matrix.pytest_runtest_logreport(report(REPAIRED, "passed"))
    assert [line.split() for line in matrix.lines()] == [
        ["who", "writes", "bookies", "autorecovery", "following", "deletion", "striping"],
        ["we,", "Java", "reads", "Java's", "-", "-", "-", "1"],
        ["Java,", "we", "read", "mixed", "-", "1", "FAILED", "-", "-"],
        ["Java", "alone", "ours", "-", "-", "1", "-"],
        ["Java", "alone", "Java's", "1", "-", "-", "-"],
    ]


def test_bookies_column_defaults_to_the_requested_make() -> None:
    matrix = Matrix("java")
    matrix.pytest_runtest_logreport(report(ALONE, "passed"))
    assert [line.split()[2:4] for line in matrix.lines()][1:] == [["Java's", "1"]]


def test_no_table_without_results() -> None:
    assert list(Matrix("rollbook").lines()) == []

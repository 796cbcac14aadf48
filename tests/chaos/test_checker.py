"""A good history is accepted; for each rule, one change of it is reported."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.chaos.checker import judge
from tests.chaos.history import Event, HistoryFile, is_as_written, payload_of, read_history

Line = tuple[str, str, int, int]  # Who, what, first, last.

GOOD: tuple[Line, ...] = (
    ("writer-1-1", "create", -1, -1),
    ("writer-1-1", "append", 0, 9),
    ("writer-1-1", "acked", 0, 6),
    ("tailer-1-1", "follow", 0, -1),
    ("tailer-1-1", "read", 0, 4),
    ("tailer-1-1", "read", 5, 5),
    ("recoverer-1-1", "closing", -1, -1),
    ("recoverer-1-1", "closed", -1, 7),
    ("writer-1-1", "unsettled", 7, 9),
    ("auditor-1-1", "listed", -1, 7),
    *(
        line
        for auditor in ("auditor-1-1", "auditor-2-1")
        for line in (
            (auditor, "follow", 0, -1),
            (auditor, "read", 0, 7),
            (auditor, "ended", -1, 7),
        )
    ),
    ("auditor-1-1", "verified", 0, 7),
)


def history(lines: Iterable[Line]) -> list[Event]:
    return [
        Event(who, what, 5, first, last, at_ns)
        for at_ns, (who, what, first, last) in enumerate(lines)
    ]


def broken_by(lines: Iterable[Line]) -> set[str]:
    return {violation.partition(":")[0] for violation in judge(history(lines)).violations}


def test_a_good_history_is_accepted() -> None:
    judgement = judge(history(GOOD))
    assert judgement.violations == []
    assert (judgement.appended, judgement.acked, judgement.ledgers) == (10, 7, 1)
    assert judgement.unknown_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("lost", ("writer-1-1", "acked", 7, 8)),
        ("refused", ("writer-1-1", "refused", 7, 9)),
        ("contents", ("writer-1-1", "misplaced", 3, 3)),
        ("one end", ("recoverer-2-1", "closed", -1, 6)),
        ("one end", ("tailer-1-1", "ended", -1, 5)),
        ("prefix", ("tailer-1-1", "read", 7, 7)),
        ("prefix", ("tailer-1-1", "read", 6, 8)),
        ("prefix", ("tailer-1-1", "ended", -1, 7)),
        ("contents", ("tailer-1-1", "odd", 6, 6)),
        ("copies", ("auditor-1-1", "verified", 2, 7)),
    ],
)
def test_violation_of_each_rule_is_reported(rule: str, line: Line) -> None:
    assert rule in broken_by((*GOOD, line))


def test_ack_of_an_append_after_the_close_is_a_violation() -> None:
    late = (("writer-1-1", "append", 6, 6), ("writer-1-1", "acked", 6, 6))
    assert "late" in broken_by((*GOOD, *late))


def test_ledger_that_stays_open_is_a_violation() -> None:
    assert "open" in broken_by(line for line in GOOD if line[3] != 7)
    assert "open" in broken_by(line for line in GOOD if line[1] != "listed")


def test_ledger_without_two_audits_and_a_check_is_a_violation() -> None:
    assert "audit" in broken_by(line for line in GOOD if line[0] != "auditor-2-1")
    assert "audit" in broken_by(line for line in GOOD if line[1] != "verified")


def test_history_survives_a_round_trip_without_its_torn_line(tmp_path: Path) -> None:
    folder = tmp_path
    file = HistoryFile(folder / "writer-1-1")
    file.note("append", 5, 0, 9)
    file.note("acked", 5, 0, 3)
    with (folder / "writer-1-1").open("a") as torn:
        torn.write("acked 5 4 9")  # The client died while it wrote this line.
    found = list(read_history(folder))
    assert [event[:5] for event in found] == [
        ("writer-1-1", "append", 5, 0, 9),
        ("writer-1-1", "acked", 5, 0, 3),
    ]
    assert found[0].at_ns < found[1].at_ns


def test_payloads_identify_ledger_and_entry() -> None:
    sizes = (1, 20, 5000)
    payloads = {payload_of(ledger, entry, 100) for ledger in (1, 11) for entry in (1, 11)}
    assert len(payloads) == 4
    for size in sizes:
        assert is_as_written(5, 7, payload_of(5, 7, size))
        assert not is_as_written(5, 8, payload_of(5, 7, size))
        assert not is_as_written(5, 7, payload_of(5, 7, size) + b"x")

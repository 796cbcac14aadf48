"""A good history is accepted; for each rule, one change is reported. Plans leave servers running."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.logs.checker import Freeze, judge
from tests.chaos.logs.history import Event, HistoryFile, name_in, payload_of, read_history
from tests.chaos.logs.plan import BOOKIES, SERVERS, LogFaultKind, draw

LEASE_S: Final = 3.0
SECOND: Final = 10**9

Line = tuple[str, str, dict[str, Any]]

W, R, T, A = "writer-1-1", "racer-1-1", "tailer-1-1", "auditor-1-1"
NAMES: Final = [f"{W}.1/0", f"{W}.1/1", f"{W}.1/2", f"{R}.1/0", f"{W}.1/3"]


def appended(who: str, first: int, count: int, **more: Any) -> Line:
    return who, "append", {"stream": f"{who}.1", "first": first, "count": count, **more}


def acked(who: str, first: int, *offsets: int, epoch: int | None = None) -> Line:
    told = {"stream": f"{who}.1", "first": first, "offsets": list(offsets), "epoch": epoch}
    return who, "acked", told


def read(who: str, offset: int, names: list[str]) -> Line:
    return who, "read", {"offset": offset, "names": names}


GOOD: Final[tuple[Line, ...]] = (
    (A, "owner", {"epoch": 1, "server": "log-1~a", "at_us": 0, "reason": ""}),
    appended(W, 0, 3),
    acked(W, 0, 0, 1, 2, epoch=1),
    (W, "again", {"stream": f"{W}.1", "first": 0, "offsets": [0, 1, 2]}),
    (T, "begin", {}),
    read(T, 0, NAMES[:2]),
    appended(R, 0, 1, expect=3),
    appended(W, 3, 1),
    acked(R, 0, 3, epoch=1),
    appended(R, 1, 1, expect=3),
    (R, "refused", {"stream": f"{R}.1", "first": 1, "count": 1, "why": "OFFSET_MISMATCH"}),
    (R, "asked", {}),
    (R, "tail", {"tail": 4}),
    ("steward-1-1", "truncate", {"before": 3}),
    (T, "gap", {"start": 2, "end": 3, "why": "truncated"}),
    read(T, 3, NAMES[3:]),
    (W, "unknown", {"stream": f"{W}.1", "first": 3, "count": 1, "why": "DEADLINE"}),
    (A, "sealed", {"tail": 5}),
    (A, "begin", {}),
    read(A, 3, NAMES[3:]),
    (A, "audited", {"offset": 3, "tail": 5}),
    (T, "sealed", {"tail": 5}),
)
UNKNOWN: Final = [kind for _, kind, _ in GOOD].index("unknown")


def broken_by(*lines: Line, freezes: tuple[Freeze, ...] = ()) -> set[str]:
    events = [
        Event(who, kind, "free-1", at * SECOND, dict(told))
        for at, (who, kind, told) in enumerate(lines)
    ]
    judgement = judge(events, freezes, LEASE_S, 0)
    return {violation.partition(":")[0] for violation in judgement.violations}


def without(kind: str, who: str) -> tuple[Line, ...]:
    return tuple(line for line in GOOD if (line[1], line[0]) != (kind, who))


def instead(kind: str, who: str, **told: Any) -> tuple[Line, ...]:
    """GOOD with changed fields in its last line of that kind and client."""
    index = max(at for at, line in enumerate(GOOD) if (line[1], line[0]) == (kind, who))
    return *GOOD[:index], (who, kind, {**GOOD[index][2], **told}), *GOOD[index + 1 :]


def test_a_good_history_is_accepted() -> None:
    assert broken_by(*GOOD) == set()
    frozen_later = Freeze("log-1~a", 9 * SECOND, 15 * SECOND)
    assert broken_by(*GOOD, freezes=(frozen_later,)) == set()


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("linearizable", instead("acked", R, offsets=[4])),  # Another record has that offset.
        ("linearizable", instead("tail", R, tail=3)),  # An acked record is not counted.
        ("linearizable", instead("read", A, names=[NAMES[4], NAMES[3]])),
        ("prefix", instead("read", T, offset=4, names=NAMES[4:])),  # The reader skips an offset.
        ("linearizable", instead("read", A, names=[NAMES[3], "nobody/0"])),
        (
            "linearizable",
            (*GOOD, (W, "refused", GOOD[UNKNOWN][2])),
        ),  # The refused record is in the log.
        ("retry", instead("again", W, offsets=[1, 2, 3])),
        ("condition", (*GOOD[:6], appended(R, 0, 1, expect=2), *GOOD[7:])),
        ("gap", instead("gap", T, end=4)),
        ("gap", instead("gap", T, why="lost")),
        ("end", instead("sealed", T, tail=4)),
        ("end", without("audited", A)),
        ("contents", (*GOOD, (A, "odd", {"offset": 3}))),
    ],
)
def test_violation_of_each_rule_is_reported(rule: str, lines: tuple[Line, ...]) -> None:
    assert rule in broken_by(*lines)


def test_reordered_or_missing_records_of_a_writer_are_reported() -> None:
    lines: tuple[Line, ...] = (
        appended(W, 0, 3),
        acked(W, 1, 0),
        (T, "begin", {}),
        read(T, 0, [NAMES[1], NAMES[0]]),
        (A, "sealed", {"tail": 2}),
        (A, "audited", {"offset": 0, "tail": 2}),
    )
    assert broken_by(*lines) == {"order"}
    seen = read(T, 0, [NAMES[0], NAMES[2]])
    assert broken_by(lines[0], lines[2], seen, *lines[4:]) == {"order"}


def test_ack_of_an_owner_that_missed_its_lease_is_reported() -> None:
    """The racer's append was handed over while the owner was stopped."""
    assert broken_by(*GOOD, freezes=(Freeze("log-1~a", 4 * SECOND, 7 * SECOND + 1),)) == {"thaw"}
    assert broken_by(*GOOD, freezes=(Freeze("log-1~a", 5 * SECOND, 7 * SECOND),)) == set()
    assert broken_by(*GOOD, freezes=(Freeze("log-2~a", 4 * SECOND, 7 * SECOND + 1),)) == set()


def test_history_survives_a_round_trip_without_its_torn_line(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / W)
    file.note("append", "free-1", stream="s", first=0, count=2)
    with (tmp_path / W).open("a") as torn:
        torn.write('{"kind": "acked"')  # The client died while it wrote this line.
    (event,) = read_history(tmp_path)
    assert event[:3] == (W, "append", "free-1")
    assert event.told == {"stream": "s", "first": 0, "count": 2}


def test_payloads_identify_their_records() -> None:
    payload = payload_of(NAMES[0], 100)
    assert name_in(payload) == NAMES[0]
    assert name_in(payload[:-1] + b"?") is None


def test_plan_leaves_a_server_and_two_bookies_running() -> None:
    kinds = set()
    for seed in range(30):
        faults = draw(seed, 60, ("writer-1", "racer-1"))
        assert faults == draw(seed, 60, ("writer-1", "racer-1"))
        kinds |= {fault.kind for fault in faults}
        for fault in faults:
            away = {
                each.target for each in faults if each.at_s <= fault.at_s < each.at_s + each.for_s
            }
            assert len(away.intersection(BOOKIES)) <= 1
            assert len(away.intersection(SERVERS)) <= 2
    assert kinds == set(LogFaultKind)

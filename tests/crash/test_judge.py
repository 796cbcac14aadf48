"""The judge of metadata stores finds each kind of false response, and nothing else."""

import json
from collections.abc import Sequence

from tests.crash.judge import Judge

Line = Sequence[object]
Store = dict[str, tuple[str, int]]
COUNTED: Store = {
    "/counters/c": ("2 t2", 2),
    "/log/c/00000001": ("t1", 0),
    "/log/c/00000002": ("t2", 0),
}


def verdict(store: Store, *lines: Line) -> list[str]:
    judge = Judge()
    for line in lines:
        judge.on_line("client", json.dumps(line))
    return judge.verdict(store)


CREATED: list[Line] = [["try", 1, "create", "/a", "v"], ["ok", 1, "/a"]]
SET: list[Line] = [*CREATED, ["try", 2, "set", "/a", "w", 0], ["ok", 2, 1]]
DELETED: list[Line] = [*CREATED, ["try", 2, "delete", "/a", 0], ["ok", 2, None]]


def test_kept_promises_are_no_violation() -> None:
    assert not verdict({"/a": ("v", 0)}, *CREATED)
    assert not verdict({"/a": ("w", 1)}, *SET)
    assert not verdict({}, *DELETED)


def test_a_lost_write_is_found() -> None:
    assert verdict({}, *CREATED)
    assert verdict({"/a": ("v", 0)}, *SET)
    assert verdict({"/a": ("v", 0)}, *DELETED)


def test_unknown_outcome_allows_both_until_read() -> None:
    unknown: list[Line] = [["try", 1, "create", "/a", "v"], ["unknown", 1]]
    assert not verdict({}, *unknown)
    assert not verdict({"/a": ("v", 0)}, *unknown)
    assert verdict({"/a": ("other", 0)}, *unknown)
    absent: list[Line] = [*unknown, ["try", 2, "get", "/a"], ["ok", 2, None]]
    assert not verdict({}, *absent)
    # The create took effect after a read returned no node.
    assert verdict({"/a": ("v", 0)}, *absent)


def test_unanswered_operation_has_an_unknown_outcome() -> None:
    assert not verdict({}, ["try", 1, "create", "/a", "v"])
    assert not verdict({"/a": ("v", 0)}, ["try", 1, "create", "/a", "v"])


def test_a_refused_write_that_happened_is_found() -> None:
    refused: list[Line] = [["try", 1, "create", "/a", "v"], ["refused", 1, "MetadataUnavailable"]]
    assert not verdict({}, *refused)
    assert verdict({"/a": ("v", 0)}, *refused)
    assert verdict(COUNTED, ["try", 1, "step", "c", 2, "t2"], ["refused", 1, "MetadataConflict"])


def test_unjustified_refusal_is_found() -> None:
    create: Line = ["try", 2, "create", "/a", "w"]
    set_it: Line = ["try", 2, "set", "/a", "w", 0]
    assert not verdict({"/a": ("v", 0)}, *CREATED, create, ["refused", 2, "NodeExists"])
    assert verdict({}, create, ["refused", 2, "NodeExists"])
    assert not verdict({}, set_it, ["refused", 2, "NoSuchNode"])
    assert verdict({"/a": ("v", 0)}, *CREATED, set_it, ["refused", 2, "NoSuchNode"])
    stale: Line = ["try", 3, "set", "/a", "w", 0]
    assert not verdict({"/a": ("w", 1)}, *SET, stale, ["refused", 3, "MetadataConflict"])
    assert verdict({"/a": ("v", 0)}, *CREATED, set_it, ["refused", 2, "MetadataConflict"])


def test_a_stale_or_dirty_read_is_found() -> None:
    assert not verdict({"/a": ("w", 1)}, *SET, ["try", 3, "get", "/a"], ["ok", 3, ["w", 1]])
    assert verdict({"/a": ("w", 1)}, *SET, ["try", 3, "get", "/a"], ["ok", 3, ["v", 0]])
    assert verdict({"/a": ("w", 1)}, *SET, ["try", 3, "get", "/a"], ["ok", 3, None])


def test_repeated_sequence_number_is_found() -> None:
    def given(op: int, value: str, path: str) -> list[Line]:
        return [["try", op, "number", "/numbers/n-", value], ["ok", op, path]]

    one, two = given(1, "x", "/numbers/n-1"), given(2, "y", "/numbers/n-2")
    store: Store = {"/numbers/n-1": ("x", 0), "/numbers/n-2": ("y", 0)}
    assert not verdict(store, *one, *two)
    deletion: list[Line] = [["try", 3, "delete", "/numbers/n-1", 0], ["ok", 3, None]]
    again = given(4, "z", "/numbers/n-1")
    assert verdict({"/numbers/n-1": ("z", 0)}, *one, *deletion, *again)
    assert verdict(store, *two, *one)  # Numbers must ascend.
    # No client requested this number.
    assert verdict({**store, "/numbers/n-3": ("z", 0)}, *one, *two)

    taken: list[Line] = [["try", 4, "number", "/numbers/n-", "z"], ["refused", 4, "NodeExists"]]
    assert verdict(store, *one, *two, *taken)


def test_counters_and_their_logs_must_agree() -> None:
    steps: list[Line] = [["try", n, "step", "c", n, f"t{n}"] for n in (1, 2)]
    acks: list[Line] = [["ok", n, None] for n in (1, 2)]
    assert not verdict(COUNTED, *steps, *acks)
    assert not verdict(COUNTED, *steps, acks[0], ["unknown", 2])
    assert verdict({**COUNTED, "/counters/c": ("1 t1", 1)}, *steps, *acks)
    assert verdict({k: v for k, v in COUNTED.items() if "1" not in k[-1]}, *steps, *acks)
    assert verdict({**COUNTED, "/log/c/00000002": ("t9", 0)}, *steps, *acks)
    assert verdict({}, *steps, *acks)


def test_value_that_no_write_made_is_a_violation() -> None:
    assert not verdict(COUNTED, ["saw", "c", 2, "t2"])
    assert verdict(COUNTED, ["saw", "c", 2, "t7"])
    assert verdict(COUNTED, ["saw", "c", 3, "t3"])


def test_violation_that_a_client_reports_counts() -> None:
    assert verdict({}, ["bad", "its session expired"]) == ["client: its session expired"]

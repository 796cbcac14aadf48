"""The rules for deleting a ledger's copy."""

import random
from array import array

import pytest

from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.core.ledger_gc import Suspects

INTERVAL, QUARANTINE = 100, 1000


def ids(*ledger_ids: int) -> IntArray:
    return array("q", ledger_ids)


def test_garbage_needs_two_scans_apart_and_a_quarantine() -> None:
    """B11."""
    suspects = Suspects(INTERVAL, QUARANTINE, 0.5)
    suspects.on_scan(0, 10, ids(3, 5), ledgers=10)
    assert list(suspects.judge(10**9, force=True).garbage) == []
    # This scan begins too soon after the first one ended.
    suspects.on_scan(109, 120, ids(3, 5), ledgers=10)
    assert list(suspects.judge(10**9, force=True).garbage) == []
    suspects.on_scan(110, 130, ids(3, 5), ledgers=10)
    assert list(suspects.judge(130 + QUARANTINE - 1, force=False).garbage) == []
    assert list(suspects.judge(130 + QUARANTINE, force=False).garbage) == [3, 5]
    assert list(suspects.judge(130, force=True).garbage) == [3, 5]


def test_ledger_seen_again_restarts_its_scans() -> None:
    """B11: its metadata was restored, or one scan saw an incomplete listing."""
    suspects = Suspects(INTERVAL, QUARANTINE, 0.5)
    suspects.on_scan(0, 10, ids(3, 5), ledgers=10)
    suspects.on_scan(200, 210, ids(3, 5), ledgers=10)
    suspects.on_scan(2000, 2010, ids(5), ledgers=10)
    suspects.on_scan(3000, 3010, ids(3, 5), ledgers=10)
    assert list(suspects.judge(10**6, force=True).garbage) == [5]


def test_many_deletions_at_once_need_an_operator() -> None:
    """B11: a wrong or emptied metadata store looks like this."""
    suspects = Suspects(INTERVAL, QUARANTINE, 0.5)
    gone = ids(*range(600))
    for now in (0, 1000):
        suspects.on_scan(now, now, gone, ledgers=1000)
    verdict = suspects.judge(10**6, force=False)
    assert verdict.is_braked
    assert not verdict.garbage
    assert suspects.judge(10**6, force=True).garbage == gone
    suspects.on_scan(2000, 2000, ids(*range(400)), ledgers=1000)  # 200 of them exist again.
    assert suspects.judge(10**6, force=False).garbage == ids(*range(400))


def test_few_deletions_need_no_operator() -> None:
    suspects = Suspects(INTERVAL, QUARANTINE, 0.5)
    for now in (0, 1000):
        suspects.on_scan(now, now, ids(1, 2, 3), ledgers=3)
    assert suspects.judge(10**6, force=False).garbage == ids(1, 2, 3)


@pytest.mark.parametrize("seed", range(200))
def test_garbage_agrees_with_a_model_of_all_scans(seed: int) -> None:
    """B11, compared with a model that keeps every scan in full."""
    chance = random.Random(seed)
    suspects = Suspects(INTERVAL, QUARANTINE, 1.0)
    scans: list[tuple[int, int, set[int]]] = []
    now = 0
    for _ in range(chance.randint(1, 12)):
        began = now + chance.randint(0, 200)
        now = began + chance.randint(0, 30)
        absent = {each for each in range(20) if chance.random() < 0.8}
        scans.append((began, now, absent))
        suspects.on_scan(began, now, ids(*sorted(absent)), ledgers=20)
        later = now + chance.randint(0, 2000)
        expected = []
        for ledger_id in range(20):
            since = 0
            for at, (_, _, gone) in enumerate(scans):
                if ledger_id not in gone:
                    since = at + 1
            run = scans[since:]
            agreed = [end for start, end, _ in run[1:] if start - run[0][1] >= INTERVAL]
            if agreed and agreed[0] + QUARANTINE <= later:
                expected.append(ledger_id)
        assert list(suspects.judge(later, force=False).garbage) == expected

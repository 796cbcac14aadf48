"""The rules of watching many tails."""

import random
from dataclasses import replace

import pytest

from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState
from rollbook.logservice.core.watched_tails import (
    NAMED_MAX,
    MergedTails,
    ReportSource,
    Scope,
    TailTable,
    owner_elsewhere,
    source_of_report,
    tail_of_list,
)
from rollbook.logservice.ids import LogName, LogUid, Offset, OwnerEpoch, ServerId, ServerInfo
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.messages import TailOfLog, Tails, WatchTails
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import LedgerId

LOG, OTHER = LogName("ns", "log"), LogName("ns", "other")
A, B = "a:1", "b:1"


def tail(
    end: int, log: LogName = LOG, *, epoch: int = 1, exact: bool = True, uid: str = "u1"
) -> TailOfLog:
    return TailOfLog(
        log,
        Offset(0),
        Offset(end),
        False,
        end,
        uid,
        exact,
        A,
        OwnerEpoch(epoch),
    )


def said(*tails: TailOfLog, gone: tuple[LogName, ...] = (), servers: tuple[str, ...]) -> Tails:
    return Tails(tails, gone, True, servers)


@pytest.mark.parametrize(
    ("prefix", "covered"),
    [
        ("", ["ns/log", "ns/other", "shop/log", "default/log"]),
        ("ns/", ["ns/log", "ns/other"]),
        ("ns/lo", ["ns/log"]),
        ("lo", ["default/log"]),
    ],
)
def test_scope_covers_names_and_prefixes(prefix: str, covered: list[str]) -> None:
    logs = ["ns/log", "ns/other", "shop/log", "default/log"]
    scope = Scope.of(WatchTails(prefixes=(prefix,)))
    assert [each for each in logs if scope.covers(LogName.parse(each))] == covered
    named = Scope.of(WatchTails(logs=(OTHER,)))
    assert [each for each in (LOG, OTHER) if named.covers(each)] == [OTHER]


def test_invalid_or_too_many_prefixes_are_rejected() -> None:
    for wrong in (("NS/",), ("/log",), ("ns/a b",), ("ns/x",) * (NAMED_MAX + 1)):
        with pytest.raises(InvalidRequest):
            Scope.of(WatchTails(prefixes=wrong))


def test_list_has_an_exact_tail_only_if_its_last_segment_is_closed() -> None:
    """TW1: a tail that the list does not know is reported as not exact."""
    empty = LedgerList(LogUid(b"u" * 16), LogConfig(), 0)
    assert tail_of_list(LOG, empty, "") == TailOfLog(
        LOG,
        Offset(0),
        Offset(0),
        False,
        0,
        (b"u" * 16).hex(),
        True,
        "",
        OwnerEpoch(0),
    )
    server = ServerInfo(ServerId("a~1"), A)
    opened = empty.with_owner(server).with_successor(LedgerId(1), "opened", 5)
    known = tail_of_list(LOG, opened, A)
    assert (known.tail, known.is_exact, known.owner) == (0, False, A)
    first = opened.segments[0]
    closed = opened.with_closed(
        first.segment_id, next_offset=Offset(7), last_timestamp_us=9, bytes=1
    )
    known = tail_of_list(LOG, closed, "")
    assert (known.tail, known.is_exact, known.timestamp_us) == (7, True, 9)
    again = closed.with_owner(server).with_successor(LedgerId(2), "opened", 5)
    known = tail_of_list(LOG, again, "")
    assert (known.tail, known.is_exact, known.timestamp_us) == (7, False, 9)
    assert tail_of_list(LOG, replace(closed, state=ListedLogState.SEALED), "").is_sealed


LISTED = LedgerList(LogUid(b"u" * 16), LogConfig(), created_us=1).with_owner(
    ServerInfo(ServerId("a~1"), A)
)
UID = (b"u" * 16).hex()


@pytest.mark.parametrize(
    ("epoch_ahead", "uid", "is_suggested", "source"),
    [
        (None, "", False, ReportSource.NOTHING),
        (None, "", True, ReportSource.LIST),
        (0, UID, False, ReportSource.OWNER),
        (0, UID, True, ReportSource.OWNER),
        (-1, UID, False, ReportSource.NOTHING),  # A later owner reports it.
        (-1, UID, True, ReportSource.LIST),
        (1, UID, True, ReportSource.LIST),  # The list is old.
        (0, "another", True, ReportSource.LIST),  # The log was replaced.
        (0, "another", False, ReportSource.LIST),
    ],
)
def test_report_source_depends_on_owner_and_suggestion(
    epoch_ahead: int | None, uid: str, is_suggested: bool, source: ReportSource
) -> None:
    owned = None if epoch_ahead is None else (OwnerEpoch(LISTED.owner_epoch + epoch_ahead), uid)
    assert source_of_report(LISTED, owned, is_suggested=is_suggested) is source
    deleted = replace(LISTED, state=ListedLogState.DELETED, free_at_us=9)
    assert source_of_report(deleted, owned, is_suggested=is_suggested) is ReportSource.NOTHING


def test_owner_elsewhere_is_another_live_server() -> None:
    here, there = ServerId("b~1"), ServerId("a~1")
    assert owner_elsewhere(LISTED, here, lambda _: True) == ServerInfo(there, A)
    assert owner_elsewhere(LISTED, here, lambda _: False) is None
    assert owner_elsewhere(LISTED, there, lambda _: True) is None, "this server has lost it"
    assert owner_elsewhere(LISTED.with_released(), here, lambda _: True) is None


def test_slow_watcher_gets_each_changed_log_once() -> None:
    """TW2."""
    table = TailTable()
    names = [LogName("ns", f"log-{number}") for number in range(100)]
    for log in names:
        table.put(tail(0, log))
    seen = table.number
    for end in range(1, 1000):
        table.put(tail(end, names[end % 10]))
    assert sorted(table.changed_since(seen)) == sorted(names[:10])
    assert table.changed_since(table.number) == []
    assert not table.put(tail(999, names[9]))  # Nothing has changed.
    assert len(table.changed_since(0)) == 100


def test_deleted_log_is_kept_until_all_watchers_know() -> None:
    """TW2."""
    table = TailTable()
    table.put(tail(1))
    table.put(tail(1, OTHER))
    seen = table.number
    table.drop(LOG)
    table.drop(LOG)
    table.forget_gone(seen)
    assert table.changed_since(seen) == [LOG]
    assert (table.get(LOG), len(table)) == (None, 1)
    table.forget_gone(table.number)
    assert table.changed_since(0) == [OTHER]


def test_tail_of_one_uid_never_goes_back() -> None:
    """TW3: the list may know less than the dead owner did."""
    table = TailTable()
    table.put(tail(9))
    table.put(tail(5, exact=False))
    known = table.get(LOG)
    assert known is not None
    assert (known.tail, known.is_exact) == (9, False)
    table.put(tail(2, uid="u2"))  # The log was deleted and created again.
    known = table.get(LOG)
    assert known is not None
    assert (known.tail, known.uid, known.is_exact) == (2, "u2", True)


def test_owners_report_wins_in_any_order() -> None:
    """TW3."""
    messages = [
        (A, said(tail(9, epoch=4), servers=(A, B))),
        (B, said(tail(5, epoch=4, exact=False), servers=(A, B))),
    ]
    for order in (messages, messages[::-1]):
        merged = MergedTails()
        for server in (A, B):
            merged.on_stream(server)
        for server, message in order:
            merged.on_message(server, message)
        assert merged.known == {LOG: tail(9, epoch=4)}
        assert merged.is_complete
        merged.on_message(A, said(gone=(LOG,), servers=(A, B)))  # Server A released the log.
        assert (merged.known[LOG].tail, merged.known[LOG].is_exact) == (9, False)
        merged.on_message(B, said(tail(10, epoch=5), servers=(A, B)))
        assert merged.known == {LOG: tail(10, epoch=5)}
        merged.on_message(B, said(gone=(LOG,), servers=(A, B)))
        assert merged.known == {}
        assert merged.take_changed() == [LOG]


def test_tails_of_a_departed_server_stay_until_others_report() -> None:
    """TW4."""
    merged = MergedTails()
    for server, log in ((A, LOG), (B, OTHER)):
        merged.on_stream(server)
        merged.on_message(server, said(tail(3, log), servers=(A, B)))
    merged.take_changed()
    merged.on_broken(A)
    assert not merged.is_complete
    assert set(merged.known) == {LOG, OTHER}
    merged.on_message(B, Tails((), (), False, (B,)))  # B is still reading the logs that A reported.
    assert set(merged.known) == {LOG, OTHER}
    merged.on_message(B, said(tail(4, LOG, epoch=2), servers=(B,)))
    assert merged.known == {LOG: tail(4, epoch=2), OTHER: tail(3, OTHER)}
    assert merged.is_complete
    assert merged.servers == [B]
    merged.on_message(B, said(gone=(LOG,), servers=(B,)))
    assert set(merged.known) == {OTHER}


def test_server_unknown_to_others_has_not_departed() -> None:
    """TW4."""
    merged = MergedTails()
    merged.on_stream(A)
    merged.on_message(A, said(tail(1), servers=(A,)))
    merged.on_stream(B)
    merged.on_message(B, said(tail(1, OTHER), servers=(A, B)))
    merged.on_message(A, said(servers=(A,)))
    assert set(merged.known) == {LOG, OTHER}
    assert merged.servers == [A, B]


def test_logs_deleted_while_a_stream_was_broken_are_gone_after_resync() -> None:
    merged = MergedTails()
    merged.on_stream(A)
    merged.on_message(A, said(tail(1), tail(1, OTHER), servers=(A,)))
    merged.on_broken(A)
    merged.on_stream(A)
    merged.on_message(A, Tails((tail(2),), (), False, (A,)))
    assert set(merged.known) == {LOG, OTHER}
    merged.on_message(A, said(servers=(A,)))
    assert merged.known == {LOG: tail(2)}


@pytest.mark.parametrize("seed", range(30))
def test_tails_never_go_back_in_any_order_of_messages(seed: int) -> None:
    """TW3: messages of one server are in order, those of different servers in any order."""
    chance = random.Random(seed)
    merged, ends = MergedTails(), {A: 0, B: 0}
    for server in ends:
        merged.on_stream(server)
    last = 0
    for _ in range(200):
        server = chance.choice([A, B])
        ends[server] = max(ends[server], chance.randrange(1000))
        gone = (LOG,) if chance.random() < 0.2 else ()
        told = () if gone else (tail(ends[server], epoch=chance.randrange(3), exact=True),)
        merged.on_message(server, said(*told, gone=gone, servers=(A, B)))
        known = merged.known.get(LOG)
        if known is None:
            last = 0
        else:
            assert known.tail >= last
            last = known.tail

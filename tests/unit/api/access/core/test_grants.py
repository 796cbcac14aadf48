import pytest

from rollbook.api.access.core import grants as module
from rollbook.api.access.core.grants import (
    EVERYTHING,
    Grants,
    Right,
    is_act,
    may_ask,
    narrowed,
    rights_for,
    visible_of,
)
from rollbook.api.access.permission_errors import refusal_of
from rollbook.api.rpc_methods import METHODS, CallKind
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset, OwnerEpoch
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import BadConfig
from tests.unit.api.grpc.samples import sample

LOG = "ns/log"
REQUESTS = [
    sample(method.request) for method in METHODS if method.kind is not CallKind.APPEND_STREAM
]
REQUESTS.append(messages.Bind(1, LogName("ns", "log"), True))


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        ("ns/log", ["ns/log"], ["ns/log2", "ns/lo", "ns2/log"]),
        ("ns/lo*", ["ns/log", "ns/lo"], ["ns/l", "ns2/log"]),
        ("ns/*", ["ns/log", "ns/a"], ["ns2/log", "n/s"]),
        ("*", ["ns/log", "a/b"], []),
    ],
)
def test_pattern_matches_its_logs_only(
    pattern: str, matches: list[str], does_not: list[str]
) -> None:
    grants = Grants(read=(pattern,))
    for log in (*matches, *does_not):
        assert grants.may(Right.READ, log) == (log in matches)
        assert not grants.may(Right.APPEND, log), "no right implies another"
        assert not grants.may(Right.ADMIN, log)


def test_denied_logs_allow_no_right() -> None:
    grants = Grants(("*",), ("*",), ("*",), deny=("ns/secret*",))
    for right in Right:
        assert grants.may(right, "ns/log")
        assert not grants.may(right, "ns/secrets")
    assert EVERYTHING.is_operator
    assert not grants.is_operator


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "ns",
        "ns/",
        "/log",
        "a/b/c",
        "**",
        "a*b",
        "a/*/b",
        "A*",
        "ns*",
        "Ns/log",
        "ns/Log",
        "ns/lög",
        "ns/.log",
        "ns/log\n",
        "*/log",
        "n/" + "x" * 256,
    ],
)
def test_invalid_log_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadConfig):
        Grants(read=(pattern,))


OF_READERS = {
    "Read",
    "ReadStream",
    "FindOffset",
    "GetCursor",
    "ListCursors",
    "ListSegments",
    "GetJournal",
}
OF_APPENDERS = {
    "Append",
    "Bind",
    "AcquireWriter",
    "RenewWriter",
    "ReleaseWriter",
    "BeginProducer",
}
OF_ANYBODY_THERE = {"GetTail", "WatchTail", "GetLog"}
OF_ADMINS = {
    "EnsureLog",
    "UpdateLog",
    "DeleteLog",
    "UndeleteLog",
    "Truncate",
    "Seal",
    "RollLog",
    "TransferLog",
    "DeleteCursor",
    "CommitCursor",  # The sample sets `is_protected`.
}
OF_OPERATORS = {"DrainServer", "GetServerStats"}
OF_ALL = {
    "ListLogs",
    "ListDeletedLogs",
    "WatchTails",
    "Lookup",
    "ListServers",
    "GetLimits",
    "GetOutage",
}


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_each_request_needs_its_right(message: object) -> None:
    """G5: each right allows its own requests, on its logs only; anybody may send `OF_ALL`."""
    name = type(message).__name__
    who = {
        "reader": (Grants(read=(LOG,)), OF_READERS | OF_ANYBODY_THERE),
        "appender": (Grants(append=(LOG,)), OF_APPENDERS | OF_ANYBODY_THERE),
        "admin": (Grants(admin=(LOG,)), OF_ADMINS | OF_ANYBODY_THERE),
        "stranger": (Grants(), set[str]()),
        "of_another_log": (Grants(("ns/other",), ("ns/log2",), ("n/*",)), set[str]()),
        "monitor": (Grants(monitor=True), {"GetServerStats"}),
        "denied": (Grants(("*",), ("*",), ("*",), deny=(LOG,)), set[str]()),
    }
    for grants, opened in who.values():
        assert may_ask(grants, message) == (name in opened | OF_ALL), grants
    assert may_ask(EVERYTHING, message)
    known = OF_READERS | OF_APPENDERS | OF_ANYBODY_THERE | OF_ADMINS | OF_OPERATORS | OF_ALL
    assert name in known, "a new request: say who may send it"


def test_watched_tails_are_narrowed_to_visible_logs() -> None:
    """G5: prefixes are narrowed to visible logs, too."""
    log, other = LogName("ns", "log"), LogName("ns", "other")
    asked = messages.WatchTails((log, other), ("", "ns/o", "shop/"))
    for grants, logs, prefixes in (
        (EVERYTHING, (log, other), ("", "ns/o", "shop/")),
        (Grants(), (), ()),
        (Grants(read=("ns/log",)), (log,), ()),
        (Grants(append=("ns/l*",)), (log,), ("ns/l",)),
        (Grants(read=("shop/*",), deny=("shop/x",)), (), ("shop/",)),
    ):
        found = narrowed(grants, asked)
        assert (found.logs, found.prefixes) == (logs, prefixes), grants
    grants = Grants(read=("*",), deny=("ns/other",))
    tails = tuple(
        messages.TailOfLog(each, Offset(0), Offset(1), False, 0, "", True, "", OwnerEpoch(0))
        for each in (log, other)
    )
    shown = visible_of(grants, messages.Tails(tails, (other, log), True, ("a:1",)))
    assert shown == messages.Tails(tails[:1], (log,), True, ("a:1",))
    assert narrowed(grants, asked).prefixes == ("", "ns/o", "shop/")


def test_unknown_request_is_refused() -> None:
    assert not may_ask(EVERYTHING, object())


def test_moving_a_cursor_needs_the_read_right() -> None:
    moved = messages.CommitCursor(
        LogName("ns", "log"), sample(messages.GetCursor).name, Offset(3), is_protected=None
    )
    assert may_ask(Grants(read=(LOG,)), moved)
    assert not may_ask(Grants(admin=(LOG,)), moved)
    assert not is_act(moved)


def test_admin_requests_are_acts_except_dry_runs() -> None:
    acts = {type(request).__name__ for request in REQUESTS if is_act(request)}
    assert acts == (OF_ADMINS | {"AcquireWriter", "DrainServer"}) - {"Truncate"}
    plan = messages.Truncate(LogName("ns", "log"), AtOffset(Offset(3)), dry_run=True)
    assert not is_act(plan)
    assert is_act(messages.Truncate(LogName("ns", "log"), AtOffset(Offset(3))))
    assert set(module._ON_ITS_LOG[messages.Truncate]) == {Right.ADMIN}


def test_refusal_names_each_sufficient_right() -> None:
    for request in REQUESTS:
        refusal = refusal_of("somebody", request)
        rights = rights_for(request)
        assert all(right.value in refusal.message for right in rights)
        assert "somebody" in refusal.message
        assert refusal.next_step
        assert bool(rights) == ("log" in refusal.ids)

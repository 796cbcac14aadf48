import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rollbook.logservice import log_metadata as log_nodes
from rollbook.logservice.core import cursors
from rollbook.logservice.core.ledger_list import ListedLogState
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.logservice.messages import (
    NO_CURSOR,
    CommitCursor,
    CommitCursorBy,
    Cursor,
    DeleteCursor,
)
from rollbook.proto.cluster import uncertain_writes
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.errors import (
    CursorAhead,
    Guarded,
    InvalidRequest,
    LogDeleted,
    LogExists,
    MetadataConflict,
    NoSuchCursor,
    NoSuchLog,
    Truncated,
)
from rollbook.proto.ids import LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from tests.messages import raises_message
from tests.unit.logservice.lists import ANNA, NAME, closed
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

SNAPSHOT = CursorName("snapshot")
LOST = (Fate.REQUEST_LOST, Fate.ANSWER_LOST)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertain_writes, "_PAUSE_S", 0.0)
    monkeypatch.setattr(log_nodes, "_PAUSE_S", 0.0)


@pytest.fixture
async def service() -> AsyncIterator[MemoryService]:
    service = MemoryService(SystemClock(), random.Random(0))
    yield service
    await service.close()


@pytest.fixture
async def cluster(service: MemoryService) -> Cluster:
    async with await service.connect() as store:
        return await initialise(store, "/ledgers", random.Random(1))


def make_nodes(store: MetadataStore, cluster: Cluster, seed: int) -> LogMetadataStore:
    return LogMetadataStore(store, cluster, SystemClock(), random.Random(seed))


@pytest.fixture
async def store(service: MemoryService, cluster: Cluster) -> AsyncIterator[FaultyStore]:
    async with FaultyStore(await service.connect()) as store:
        yield store


@pytest.fixture
async def nodes(store: FaultyStore, cluster: Cluster) -> LogMetadataStore:
    nodes = make_nodes(store, cluster, 2)
    await nodes.start()
    return nodes


@pytest.fixture
async def rival(service: MemoryService, cluster: Cluster) -> AsyncIterator[LogMetadataStore]:
    async with await service.connect() as store:
        yield make_nodes(store, cluster, 3)


async def opened(nodes: LogMetadataStore, *ends: int) -> StoredLog:
    """A log with closed segments that end at `ends`, and an open one."""
    stored = await nodes.create(NAME, LogConfig())
    stored = await nodes.replace(stored, stored.list.with_owner(ANNA))
    for ledger_id in range(len(ends) + 1):
        listed = stored.list.with_successor(LedgerId(ledger_id), "size", 0)
        stored = await nodes.replace(stored, listed, made_for=stored.version)
        if ledger_id < len(ends):
            listed = closed(stored.list, ledger_id, ends[ledger_id])
            stored = await nodes.replace(stored, listed)
    return stored


# --- Logs -------------------------------------------------------------------------------------


async def test_log_is_created_once(nodes: LogMetadataStore, rival: LogMetadataStore) -> None:
    with pytest.raises(NoSuchLog):
        await nodes.read(NAME)
    stored, was_made = await nodes.ensure(NAME, None)
    assert was_made
    assert await rival.ensure(NAME, None) == (stored, False)
    assert await rival.ensure(NAME, LogConfig()) == (stored, False)
    with pytest.raises(LogExists):
        await rival.ensure(NAME, LogConfig(description="another"))
    with pytest.raises(LogExists):
        await rival.create(NAME, LogConfig())
    assert await nodes.read(NAME) == stored


@pytest.mark.parametrize("fate", LOST)
async def test_creator_knows_the_outcome_after_a_lost_reply(
    nodes: LogMetadataStore, store: FaultyStore, rival: LogMetadataStore, fate: Fate
) -> None:
    """LL7."""
    await nodes.create(LogName("default", "another"), LogConfig())
    folder = nodes.path(NAME).rpartition("/")[0]
    await uncertain_writes.ensure_node(store, folder)
    store.fates.append(fate)
    stored, was_made = await nodes.ensure(NAME, None)
    assert was_made
    assert await rival.ensure(NAME, None) == (stored, False)


@pytest.mark.parametrize("fate", LOST)
async def test_change_with_a_lost_reply_is_applied_once(
    nodes: LogMetadataStore, store: FaultyStore, fate: Fate
) -> None:
    """LL7."""
    stored = await nodes.create(NAME, LogConfig())
    store.fates.append(fate)
    stored = await nodes.replace(stored, stored.list.with_owner(ANNA))
    assert stored.version == 1
    assert await nodes.read(NAME) == stored


@pytest.mark.parametrize("fate", LOST)
async def test_equal_change_by_another_writer_is_a_conflict(
    nodes: LogMetadataStore, store: FaultyStore, rival: LogMetadataStore, fate: Fate
) -> None:
    """LL7: both lists have the same bytes except for the token."""
    stored = await nodes.create(NAME, LogConfig())
    wanted = stored.list.with_preferred_server("anna")
    if fate is Fate.ANSWER_LOST:
        await rival.replace(stored, wanted)
    else:

        async def rival_is_quicker() -> None:
            await rival.replace(stored, wanted)

        store.between = rival_is_quicker
    store.fates.append(fate)
    with pytest.raises(MetadataConflict):
        await nodes.replace(stored, wanted)


async def test_a_change_from_an_old_list_is_refused(
    nodes: LogMetadataStore, rival: LogMetadataStore
) -> None:
    stored = await nodes.create(NAME, LogConfig())
    newer = await rival.replace(stored, stored.list.with_owner(ANNA))
    with pytest.raises(MetadataConflict):
        await nodes.replace(stored, stored.list.with_preferred_server("bert"))
    assert await nodes.read(NAME) == newer
    with pytest.raises(NoSuchLog):
        await nodes.replace(replace(stored, name=LogName("default", "none")), newer.list)


async def test_ledger_is_listed_only_from_the_version_it_was_made_for(
    nodes: LogMetadataStore,
) -> None:
    """LL8: otherwise repair could take it for an orphan while it is being listed."""
    stored = await nodes.create(NAME, LogConfig())
    made_for = stored.version
    stored = await nodes.replace(stored, stored.list.with_owner(ANNA))
    listed = stored.list.with_successor(LedgerId(7), "opened", 0)
    with pytest.raises(MetadataConflict):
        await nodes.replace(stored, listed, made_for=made_for)
    with pytest.raises(AssertionError):
        await nodes.replace(stored, listed)
    assert (await nodes.read(NAME)).list.segments == ()
    assert (await nodes.replace(stored, listed, made_for=stored.version)).list.lists(LedgerId(7))


async def test_bump_changes_only_the_version(nodes: LogMetadataStore) -> None:
    stored = await opened(nodes, 10)
    bumped = await nodes.bump(stored)
    assert bumped == replace(stored, version=stored.version + 1)
    assert await nodes.read(NAME) == bumped
    assert await nodes.replace(bumped, bumped.list) == bumped  # Nothing to write.


async def test_change_is_retried_after_conflicts(
    nodes: LogMetadataStore, store: FaultyStore, rival: LogMetadataStore
) -> None:
    await nodes.create(NAME, LogConfig())

    async def rival_is_quicker() -> None:
        await rival.change(NAME, lambda listed: listed.with_owner(ANNA))

    store.writes = 0
    store.before_write = {1: [rival_is_quicker], 2: [rival_is_quicker]}
    stored = await nodes.change(NAME, lambda listed: listed.with_preferred_server("bert"))
    assert (stored.list.owner_epoch, stored.list.preferred_server) == (2, "bert")


async def test_names_are_listed_in_order_by_page(nodes: LogMetadataStore) -> None:
    names = [LogName("shop", f"log-{index:03d}") for index in range(40)]
    for name in reversed(names):
        await nodes.create(name, LogConfig())
    await nodes.create(LogName("other", "log-000"), LogConfig())
    assert await nodes.namespaces() == ["other", "shop"]
    assert await nodes.names("shop") == names
    assert await nodes.names("shop", limit=3) == names[:3]
    assert await nodes.names("shop", start_after="log-002", limit=2) == names[3:5]
    assert await nodes.names("shop", prefix="log-01") == names[10:20]
    assert await nodes.names("nobody") == []
    assert sorted([name async for name in nodes.all_names()]) == [
        LogName("other", "log-000"),
        *names,
    ]


async def test_a_log_is_removed_when_its_ledgers_are_gone(nodes: LogMetadataStore) -> None:
    stored = await opened(nodes, 10)
    await nodes.commit_cursor(CommitCursor(NAME, CursorName("reader"), Offset(3)))
    stored = await nodes.replace_guarded(
        stored, stored.list.with_deleted(5), found=await nodes.read_guards(NAME)
    )
    with pytest.raises(LogDeleted):
        await nodes.commit_cursor(CommitCursor(NAME, CursorName("late"), Offset(3)))
    with pytest.raises(MetadataConflict):
        await nodes.remove(stored)
    stored = await nodes.replace(stored, stored.list.with_ledgers_condemned())
    assert stored.list.state is ListedLogState.DELETED
    stored = await nodes.replace(stored, stored.list.without_discarded(stored.list.discarded))
    await nodes.remove(stored)
    with pytest.raises(NoSuchLog):
        await nodes.read(NAME)
    made_anew, was_made = await nodes.ensure(NAME, None)
    assert was_made
    assert made_anew.list.uid != stored.list.uid
    assert await nodes.first_cursors(NAME, 10) == ([], 0)


# --- Cursors and marks ------------------------------------------------------------------------


def at(offset: int, **more: object) -> CommitCursor:
    return CommitCursor(NAME, SNAPSHOT, Offset(offset), **more)  # type: ignore[arg-type]  # Fields of the message.


async def test_cursor_commit_checks_version_direction_and_bounds(
    nodes: LogMetadataStore, rival: LogMetadataStore
) -> None:
    with pytest.raises(NoSuchLog):
        await nodes.commit_cursor(at(1))
    with pytest.raises(NoSuchLog):
        await nodes.read_cursor(NAME, SNAPSHOT)
    await nodes.create(NAME, LogConfig())
    with pytest.raises(NoSuchCursor):
        await nodes.read_cursor(NAME, SNAPSHOT)
    made = await nodes.commit_cursor(at(5, blob=b"uri", expected_version=NO_CURSOR))
    assert await rival.read_cursor(NAME, SNAPSHOT) == made
    with pytest.raises(MetadataConflict):
        await rival.commit_cursor(at(6, expected_version=NO_CURSOR))
    with pytest.raises(MetadataConflict):
        await rival.commit_cursor(at(6, expected_version=made.version + 1))
    moved = await rival.commit_cursor(at(6, expected_version=made.version))
    assert (moved.offset, moved.blob, moved.is_protected) == (6, b"uri", False)
    with pytest.raises(CursorAhead):
        await nodes.commit_cursor(at(5))
    assert (await nodes.commit_cursor(at(5, may_rewind=True))).offset == 5
    with pytest.raises(InvalidRequest):
        await nodes.commit_cursor(at(9), tail=Offset(8))
    with pytest.raises(InvalidRequest):
        await nodes.commit_cursor(at(6, blob=b"x" * 4097))
    assert [cursor.name for cursor in (await nodes.first_cursors(NAME, 10))[0]] == [SNAPSHOT]
    first = await nodes.commit_cursor(CommitCursor(NAME, CursorName("a"), Offset(1)))
    assert await nodes.first_cursors(NAME, at_most=1) == ([first], 1)


async def test_recreated_cursor_has_a_different_version(nodes: LogMetadataStore) -> None:
    await nodes.create(NAME, LogConfig())
    first = await nodes.commit_cursor(at(5))
    await nodes.delete_cursor(DeleteCursor(NAME, SNAPSHOT, first.version))
    with pytest.raises(NoSuchCursor):
        await nodes.delete_cursor(DeleteCursor(NAME, SNAPSHOT))
    await nodes.commit_cursor(at(5))
    with pytest.raises(MetadataConflict):
        await nodes.commit_cursor(at(6, expected_version=first.version))
    with pytest.raises(MetadataConflict):
        await nodes.delete_cursor(DeleteCursor(NAME, SNAPSHOT, first.version))


@pytest.mark.parametrize("fate", LOST)
@pytest.mark.parametrize("is_protected", [False, True])
async def test_commit_with_a_lost_reply_is_applied_once(
    nodes: LogMetadataStore, store: FaultyStore, fate: Fate, is_protected: bool
) -> None:
    """LL7."""
    await nodes.create(NAME, LogConfig())
    cursor: Cursor = await nodes.commit_cursor(at(1))
    store.fates.append(fate)
    moved = await nodes.commit_cursor(
        at(2, expected_version=cursor.version, is_protected=is_protected)
    )
    assert await nodes.read_cursor(NAME, SNAPSHOT) == moved
    store.fates.append(fate)
    await nodes.delete_cursor(DeleteCursor(NAME, SNAPSHOT, moved.version))
    assert (await nodes.read_guards(NAME)).guards.offsets == ()


async def test_mark_blocks_truncation_and_deletion(nodes: LogMetadataStore) -> None:
    """LL6."""
    stored = await opened(nodes, 10, 20)
    await nodes.commit_cursor(at(12, is_protected=True))
    guards = await nodes.read_guards(NAME)
    with pytest.raises(Guarded) as refused:
        await nodes.replace_guarded(
            stored, stored.list.with_head(Offset(13), Offset(20)), found=guards
        )
    assert refused.value.ids["marks"] == ("snapshot",)
    with pytest.raises(Guarded):
        await nodes.replace_guarded(stored, stored.list.with_deleted(1), found=guards)
    stored = await nodes.replace_guarded(
        stored, stored.list.with_head(Offset(12), Offset(20)), found=guards
    )
    assert await nodes.read(NAME) == stored
    with pytest.raises(Truncated):
        await nodes.commit_cursor(at(11, may_rewind=True))
    await nodes.commit_cursor(at(12, is_protected=False))
    guards = await nodes.read_guards(NAME)
    await nodes.replace_guarded(stored, stored.list.with_head(Offset(20), Offset(20)), found=guards)


async def test_concurrent_mark_and_truncation_conflict(
    nodes: LogMetadataStore, store: FaultyStore, rival: LogMetadataStore
) -> None:
    """LL6: whichever is second fails, with or without earlier marks."""
    stored = await opened(nodes, 10, 20)
    guards = await nodes.read_guards(NAME)
    await rival.commit_cursor(at(5, is_protected=True))
    with pytest.raises(MetadataConflict):
        await nodes.replace_guarded(
            stored, stored.list.with_head(Offset(10), Offset(20)), found=guards
        )

    async def rival_truncates() -> None:
        stored = await rival.read(NAME)
        guards = await rival.read_guards(NAME)
        listed = stored.list.with_head(Offset(5), Offset(20))
        await rival.replace_guarded(stored, listed, found=guards)

    store.writes = 0
    store.before_write = {1: [rival_truncates]}
    with pytest.raises(Truncated):
        await nodes.commit_cursor(
            CommitCursor(NAME, CursorName("other"), Offset(4), is_protected=True)
        )


async def test_unprotected_cursor_does_not_block_truncation(nodes: LogMetadataStore) -> None:
    stored = await opened(nodes, 10)
    await nodes.commit_cursor(at(3))
    guards = await nodes.read_guards(NAME)
    await nodes.replace_guarded(stored, stored.list.with_head(Offset(10), Offset(10)), found=guards)
    assert (await nodes.read_cursor(NAME, SNAPSHOT)).offset == 3


def committed_by(log: LogName, cursor: str, principal: str = "anna") -> CommitCursorBy:
    return CommitCursorBy(log, CursorName(cursor), Offset(0), principal=principal)


async def test_cursors_of_a_principal_are_bounded_over_all_logs(
    nodes: LogMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CB1: cursors that are deleted with their log make room, and only once."""
    monkeypatch.setattr(cursors, "CURSORS_IN_ALL_LOGS_MAX", 3)
    other = LogName("default", "other")
    for log in (NAME, other):
        await nodes.create(log, LogConfig())
    for log, cursor in ((NAME, "a"), (NAME, "b"), (other, "a")):
        await nodes.commit_cursor(committed_by(log, cursor))
        await nodes.commit_cursor(committed_by(log, cursor))  # A moved cursor is already counted.
    with raises_message(InvalidRequest):
        await nodes.commit_cursor(committed_by(other, "b"))
    await nodes.commit_cursor(committed_by(other, "b", "bert"))
    await nodes.delete_cursor(DeleteCursor(NAME, CursorName("a")))
    await nodes.commit_cursor(committed_by(other, "c"))
    with pytest.raises(InvalidRequest):
        await nodes.commit_cursor(committed_by(other, "d"))
    stored = await nodes.read(other)
    guards = await nodes.read_guards(other)
    await nodes.remove(
        await nodes.replace_guarded(stored, stored.list.with_deleted(5), found=guards)
    )
    for cursor in ("c", "d"):
        await nodes.commit_cursor(committed_by(NAME, cursor))
    with pytest.raises(InvalidRequest):
        await nodes.commit_cursor(committed_by(NAME, "e"))

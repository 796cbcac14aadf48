"""Marks, locks, the switch and the delay, in the form that Java's autorecovery uses."""

import asyncio
from itertools import product

import pytest

from rollbook.proto.cluster.underreplication_marks import Checked, Lock, Marks
from rollbook.proto.errors import (
    BadMetadata,
    MetadataUnavailable,
    NoSuchNode,
    OutcomeUnknown,
    SessionExpired,
)
from rollbook.proto.formats.replication import UnderreplicatedMark, pack_mark
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import NO_SESSION, MetadataStore
from tests.messages import raises_message
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
U = f"{ROOT}/underreplication"
B1, B2, B3 = (BookieId(f"b{number}:3181") for number in (1, 2, 3))
L7, L8, L9 = LedgerId(7), LedgerId(8), LedgerId(9)
MARK_7 = f"{U}/ledgers/0000/0000/0000/0007/urL0000000007"
LOCK_7 = f"{U}/locks/urL0000000007"
LOST = (Fate.REQUEST_LOST, Fate.ANSWER_LOST)


@pytest.fixture
async def marks(store: FaultyStore, rival: MetadataStore) -> Marks:
    await rival.create(ROOT)
    marks = Marks(store, ROOT)
    await marks.prepare()
    return marks


async def value_at(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None
    return node.value


async def taken(marks: Marks, ledger_id: LedgerId) -> Lock:
    lock = await marks.take(ledger_id, "worker-1")
    assert lock is not None
    return lock


# --- The tree ---------------------------------------------------------------------------------


async def test_folders_and_layout_match_java(marks: Marks, rival: MetadataStore) -> None:
    assert await rival.children(U) == ["LAYOUT", "auditorelection", "ledgers", "locks"]
    assert await value_at(rival, f"{U}/LAYOUT") == b'type: "BASIC"\nversion: 1\n'
    await marks.prepare()


async def test_marks_with_unknown_layout_are_refused(rival: MetadataStore) -> None:
    for path in (ROOT, U):
        await rival.create(path)
    await rival.create(f"{U}/LAYOUT", b'type: "FANCY"\nversion: 1\n')
    with raises_message(BadMetadata):
        await Marks(rival, ROOT).prepare()


# --- Marks ------------------------------------------------------------------------------------


async def test_mark_is_written_in_format_of_java(marks: Marks, rival: MetadataStore) -> None:
    """AR19: a task for each ledger under `underreplication`."""
    assert await marks.mark(L7, [B1, B2], 1700)
    expected = b'replica: "b1:3181"\nreplica: "b2:3181"\nctime: 1700\n'
    assert await value_at(rival, MARK_7) == expected


async def test_marking_again_adds_only_new_bookies(marks: Marks) -> None:
    """MK1."""
    assert await marks.mark(L7, [B1], 1)
    assert not await marks.mark(L7, [B1], 2)
    assert await marks.mark(L7, [B3, B1], 3)
    found = await marks.read(L7)
    assert found is not None
    assert (found.mark, found.version) == (UnderreplicatedMark((B1, B3), 3), 1)


async def test_mark_without_bookies_can_be_written(marks: Marks) -> None:
    assert await marks.mark(L7, [], 5)
    assert not await marks.mark(L7, [], 6)
    found = await marks.read(L7)
    assert found is not None
    assert found.mark == UnderreplicatedMark((), 5)


@pytest.mark.parametrize("row", list(product(LOST, repeat=2)))
@pytest.mark.parametrize("exists", [False, True])
async def test_mark_is_written_despite_lost_requests_and_replies(
    marks: Marks, store: FaultyStore, row: tuple[Fate, ...], exists: bool
) -> None:
    """MK1, LR1."""
    if exists:
        await marks.mark(L7, [B1], 1)
    await marks.mark(L8, [B1], 1)
    store.fates.extend(row)
    await marks.mark(L7, [B2], 2)
    found = await marks.read(L7)
    assert found is not None
    assert found.mark == UnderreplicatedMark((B1, B2) if exists else (B2,), 2)


async def test_new_marks_are_written_in_one_transaction(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """AR19: the same bytes as one by one."""
    await marks.mark(L9, [B1], 1)  # Creates the folders above.
    store.writes = 0
    assert await marks.mark_new({L7: (B1, B2), L8: (B2,)}, 1700)
    assert store.writes == 1
    assert await value_at(rival, MARK_7) == pack_mark(UnderreplicatedMark((B1, B2), 1700))
    assert await value_at(rival, MARK_7.replace("7", "8")) == pack_mark(
        UnderreplicatedMark((B2,), 1700)
    )


@pytest.mark.parametrize("fate", [Fate.OK, *LOST, Fate.EXPIRED])
async def test_mark_new_refuses_if_a_mark_exists(
    marks: Marks, store: FaultyStore, fate: Fate
) -> None:
    """MK1."""
    await marks.mark(L7, [B1], 1)
    store.fates.append(fate)
    missing = {L7: (B2,), L8: (B2,)}
    assert not await marks.mark_new(missing, 2)
    for ledger_id, bookies in missing.items():
        await marks.mark(ledger_id, bookies, 2)
    found = [await marks.read(each) for each in (L7, L8)]
    assert [each and each.mark for each in found] == [
        UnderreplicatedMark((B1, B2), 2),
        UnderreplicatedMark((B2,), 2),
    ]


async def test_mark_new_refuses_without_folders_above(marks: Marks) -> None:
    assert not await marks.mark_new({L7: (B1,), L8: (B1,)}, 1)
    assert await marks.mark(L7, [B1], 1)


async def test_concurrent_marks_by_two_auditors_keep_both_bookies(
    marks: Marks, service: MemoryService
) -> None:
    """MK1: in either order."""
    async with await service.connect() as other:
        theirs = Marks(other, ROOT)
        await asyncio.gather(marks.mark(L7, [B1], 1), theirs.mark(L7, [B2], 2))
    found = await marks.read(L7)
    assert found is not None
    assert set(found.mark.missing) == {B1, B2}


async def test_list_of_marks_skips_other_nodes(marks: Marks, rival: MetadataStore) -> None:
    """MK4."""
    ids = [LedgerId(each) for each in (7, 8, 65_535, 65_536, 2**31, 2**62)]
    for ledger_id in reversed(ids):
        await marks.mark(ledger_id, [B1], 1)
    folder = MARK_7.rpartition("/")[0]
    await rival.create(f"{folder}/urL0000000009")  # Marks of ledger 9 have another path.
    await rival.create(f"{folder}/note")
    await rival.create(f"{U}/ledgers/zzzz")
    assert [each async for each in marks.ids()] == ids
    assert marks.ledger_of(MARK_7) == L7
    assert marks.ledger_of(f"{folder}/urL0000000009") is None
    assert marks.ledger_of(folder) is None


async def test_unreadable_mark_error_names_path(marks: Marks, rival: MetadataStore) -> None:
    """MK4."""
    await marks.mark(L7, [B1], 1)
    await rival.set(MARK_7, b"\xff{")
    with pytest.raises(BadMetadata, match=MARK_7):
        await marks.read(L7)
    with pytest.raises(BadMetadata, match=MARK_7):
        await marks.mark(L7, [B2], 2)


# --- Locks and removal of marks ---------------------------------------------------------------


async def test_ledger_lock_has_one_holder(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """AR21: the lock is an ephemeral node; a worker that cannot take it tries the next task."""
    lock = await taken(marks, L7)
    assert await value_at(rival, LOCK_7) == b'bookieId: "worker-1"\n'
    theirs = Marks(rival, ROOT)
    assert await theirs.take(L7, "worker-2") is None
    assert await marks.take(L7, "worker-1") is None, "held by another task of this session"
    assert await Marks(store, ROOT).take(L7, "worker-3") is None, (
        "held by another Marks of this session"
    )
    assert await theirs.locked() == {L7}
    assert await theirs.holder(L7) == "worker-1"
    await marks.release(lock)
    assert await theirs.holder(L7) is None
    assert await theirs.take(L7, "worker-2") is not None


async def test_no_lock_is_taken_before_the_first_session(
    marks: Marks, rival: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock would belong to a session that begins during the call, and nobody would know which."""
    with monkeypatch.context() as before:
        before.setattr(FaultyStore, "session", NO_SESSION)
        with pytest.raises(MetadataUnavailable):
            await marks.take(L7, "worker-1")
    assert await rival.get(LOCK_7) is None
    await taken(marks, L7)


@pytest.mark.parametrize("row", list(product(LOST, repeat=2)))
async def test_lock_with_lost_reply_is_found_by_its_session(
    marks: Marks, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1."""
    store.fates.extend(row)
    lock = await taken(marks, L7)
    store.fates.extend(row)
    await marks.release(lock)
    assert await marks.locked() == set()


async def test_lock_with_unknown_outcome_is_released_by_next_take(
    marks: Marks, store: FaultyStore
) -> None:
    store.fates.extend([Fate.ANSWER_LOST] * 6)
    with pytest.raises(OutcomeUnknown):
        await marks.take(L7, "worker-1")
    assert await marks.locked() == {L7}
    await taken(marks, L8)
    assert await marks.locked() == {L8}
    await taken(marks, L7)


async def test_unmark_is_refused_after_mark_has_changed(marks: Marks, rival: MetadataStore) -> None:
    """MK2, AR24, AR25: after the repair the mark is deleted and the lock released; a mark that has
    changed stays.
    """
    await marks.mark(L7, [B1], 1)
    lock = await taken(marks, L7)
    found = await marks.read(L7)
    assert found is not None
    await Marks(rival, ROOT).mark(L7, [B2], 2)
    assert not await marks.unmark(found, lock)
    found = await marks.read(L7)
    assert found is not None
    assert await marks.unmark(found, lock)
    assert await marks.unmark(found, lock), "a second removal succeeds"
    await marks.release(lock)
    assert await rival.children(f"{U}/ledgers") == []
    assert await rival.children(f"{U}/locks") == []


@pytest.mark.parametrize("fate", LOST)
async def test_unmark_is_made_once_despite_lost_requests_and_replies(
    marks: Marks, store: FaultyStore, fate: Fate
) -> None:
    """MK2, LR1."""
    await marks.mark(L7, [B1], 1)
    lock = await taken(marks, L7)
    found = await marks.read(L7)
    assert found is not None
    store.fates.append(fate)
    assert await marks.unmark(found, lock)
    assert await marks.read(L7) is None


async def test_unmark_without_lock_is_refused(marks: Marks, rival: MetadataStore) -> None:
    """MK2, MK3."""
    await marks.mark(L7, [B1], 1)
    lock = await taken(marks, L7)
    found = await marks.read(L7)
    assert found is not None
    earlier = Lock(L7, lock.path, lock.session + 1)
    with pytest.raises(SessionExpired):
        await marks.unmark(found, earlier)
    await marks.release(earlier)
    assert await marks.locked() == {L7}, "another session's lock is not released"
    await rival.delete(LOCK_7)
    with pytest.raises(NoSuchNode):
        await marks.unmark(found, lock)
    assert await marks.read(L7) == found


# --- Switch, delay, times ---------------------------------------------------------------------


async def test_autorecovery_can_be_disabled_and_enabled(marks: Marks, rival: MetadataStore) -> None:
    """AR10, AR11."""
    watch = await marks.watch_switch()
    assert await marks.is_enabled()
    await marks.disable()
    await marks.disable()
    assert await value_at(rival, f"{U}/disable") == b""
    assert not await marks.is_enabled()
    assert (await anext(watch)).path == f"{U}/disable"
    await marks.enable()
    await marks.enable()
    assert await marks.is_enabled()


async def test_setting_same_delay_again_notifies_watchers(
    marks: Marks, rival: MetadataStore
) -> None:
    assert await marks.delay() is None
    await marks.set_delay(30)
    assert await value_at(rival, f"{U}/lostBookieRecoveryDelay") == b"30"
    assert await marks.delay() == (30, 0)
    watch = await marks.watch_delay()
    await marks.set_delay(30)
    await anext(watch)
    assert await marks.delay() == (30, 1)
    await rival.set(f"{U}/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(BadMetadata):
        await marks.delay()


async def test_completion_times_of_checks_are_stored(marks: Marks, rival: MetadataStore) -> None:
    for check in Checked:
        assert await marks.checked_at_ms(check) is None
        await marks.set_checked_at(check, 1700)
        await marks.set_checked_at(check, 1800)
        assert await marks.checked_at_ms(check) == 1800
        await rival.set(f"{U}/{check.value}", b"\xff\xff")
        assert await marks.checked_at_ms(check) is None


async def test_mark_is_written_if_its_folder_is_removed_meanwhile(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """Java's worker removes empty folders while our auditor writes marks."""

    async def folder_goes() -> None:
        await rival.delete(MARK_7.rpartition("/")[0])

    await marks.mark(LedgerId(7 + 65_536), [B1], 1)  # Creates the folders above.
    await rival.create(f"{U}/ledgers/0000/0000/0000")
    await rival.create(MARK_7.rpartition("/")[0])
    store.writes = 0
    # Write 1: mark with its folder, which exists; write 2: the mark alone.
    store.before_write[2] = [folder_goes]
    assert await marks.mark(L7, [B1], 1)
    assert await value_at(rival, MARK_7) == pack_mark(UnderreplicatedMark((B1,), 1))
    assert store.writes == 4, "write 3 creates the folder and write 4 the mark"

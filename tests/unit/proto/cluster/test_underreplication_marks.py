"""Marks, locks, the switch and the delay, as Java's autorecovery finds them."""

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


async def test_folders_and_layout_are_those_of_java(marks: Marks, rival: MetadataStore) -> None:
    assert await rival.children(U) == ["LAYOUT", "auditorelection", "ledgers", "locks"]
    assert await value_at(rival, f"{U}/LAYOUT") == b'type: "BASIC"\nversion: 1\n'
    await marks.prepare()


async def test_marks_that_are_kept_in_another_form_are_refused(rival: MetadataStore) -> None:
    for path in (ROOT, U):
        await rival.create(path)
    await rival.create(f"{U}/LAYOUT", b'type: "FANCY"\nversion: 1\n')
    with raises_message(BadMetadata):
        await Marks(rival, ROOT).prepare()


# --- Marks ------------------------------------------------------------------------------------


async def test_a_mark_is_written_as_java_writes_it(marks: Marks, rival: MetadataStore) -> None:
    """AR19: a task for each ledger under `underreplication`."""
    assert await marks.mark(L7, [B1, B2], 1700)
    expected = b'replica: "b1:3181"\nreplica: "b2:3181"\nctime: 1700\n'
    assert await value_at(rival, MARK_7) == expected


async def test_marking_twice_adds_what_is_new(marks: Marks) -> None:
    """MK1."""
    assert await marks.mark(L7, [B1], 1)
    assert not await marks.mark(L7, [B1], 2)
    assert await marks.mark(L7, [B3, B1], 3)
    found = await marks.read(L7)
    assert found is not None
    assert (found.mark, found.version) == (UnderreplicatedMark((B1, B3), 3), 1)


async def test_a_mark_without_bookies_is_about_placement(marks: Marks) -> None:
    assert await marks.mark(L7, [], 5)
    assert not await marks.mark(L7, [], 6)
    found = await marks.read(L7)
    assert found is not None
    assert found.mark == UnderreplicatedMark((), 5)


@pytest.mark.parametrize("row", list(product(LOST, repeat=2)))
@pytest.mark.parametrize("exists", [False, True])
async def test_a_mark_is_made_whatever_is_lost(
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


async def test_new_marks_are_made_together(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """AR19: byte for byte as one by one."""
    await marks.mark(L9, [B1], 1)  # For the folders above.
    store.writes = 0
    assert await marks.mark_new({L7: (B1, B2), L8: (B2,)}, 1700)
    assert store.writes == 1
    assert await value_at(rival, MARK_7) == pack_mark(UnderreplicatedMark((B1, B2), 1700))
    assert await value_at(rival, MARK_7.replace("7", "8")) == pack_mark(
        UnderreplicatedMark((B2,), 1700)
    )


@pytest.mark.parametrize("fate", [Fate.OK, *LOST, Fate.EXPIRED])
async def test_marks_that_are_there_are_left_to_be_marked_one_by_one(
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


async def test_new_marks_without_folders_above_are_left_too(marks: Marks) -> None:
    assert not await marks.mark_new({L7: (B1,), L8: (B1,)}, 1)
    assert await marks.mark(L7, [B1], 1)


async def test_two_auditors_that_mark_one_ledger_lose_nothing(
    marks: Marks, service: MemoryService
) -> None:
    """MK1: both names are there, in either order."""
    async with await service.connect() as other:
        theirs = Marks(other, ROOT)
        await asyncio.gather(marks.mark(L7, [B1], 1), theirs.mark(L7, [B2], 2))
    found = await marks.read(L7)
    assert found is not None
    assert set(found.mark.missing) == {B1, B2}


async def test_all_marks_are_listed_and_strangers_passed_over(
    marks: Marks, rival: MetadataStore
) -> None:
    """MK4."""
    ids = [LedgerId(each) for each in (7, 8, 65_535, 65_536, 2**31, 2**62)]
    for ledger_id in reversed(ids):
        await marks.mark(ledger_id, [B1], 1)
    folder = MARK_7.rpartition("/")[0]
    await rival.create(f"{folder}/urL0000000009")  # Not where ledger 9 is looked for.
    await rival.create(f"{folder}/note")
    await rival.create(f"{U}/ledgers/zzzz")
    assert [each async for each in marks.ids()] == ids
    assert marks.ledger_of(MARK_7) == L7
    assert marks.ledger_of(f"{folder}/urL0000000009") is None
    assert marks.ledger_of(folder) is None


async def test_a_mark_that_cannot_be_read_says_where_it_is(
    marks: Marks, rival: MetadataStore
) -> None:
    """MK4."""
    await marks.mark(L7, [B1], 1)
    await rival.set(MARK_7, b"\xff{")
    with pytest.raises(BadMetadata, match=MARK_7):
        await marks.read(L7)
    with pytest.raises(BadMetadata, match=MARK_7):
        await marks.mark(L7, [B2], 2)


# --- Locks and un-marking ---------------------------------------------------------------------


async def test_a_ledger_is_locked_once(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """AR21: the lock is an ephemeral node; who cannot have it tries the next task."""
    lock = await taken(marks, L7)
    assert await value_at(rival, LOCK_7) == b'bookieId: "worker-1"\n'
    theirs = Marks(rival, ROOT)
    assert await theirs.take(L7, "worker-2") is None
    assert await marks.take(L7, "worker-1") is None, "held by another task of this session"
    assert await Marks(store, ROOT).take(L7, "worker-3") is None, "nor is it given to a namesake"
    assert await theirs.locked() == {L7}
    assert await theirs.holder(L7) == "worker-1"
    await marks.release(lock)
    assert await theirs.holder(L7) is None
    assert await theirs.take(L7, "worker-2") is not None


async def test_no_lock_is_taken_before_the_first_session(
    marks: Marks, rival: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be made in a session that begins meanwhile, and nobody would know whose it is."""
    with monkeypatch.context() as before:
        before.setattr(FaultyStore, "session", NO_SESSION)
        with pytest.raises(MetadataUnavailable):
            await marks.take(L7, "worker-1")
    assert await rival.get(LOCK_7) is None
    await taken(marks, L7)


@pytest.mark.parametrize("row", list(product(LOST, repeat=2)))
async def test_a_lock_whose_reply_was_lost_is_found_by_its_session(
    marks: Marks, store: FaultyStore, row: tuple[Fate, ...]
) -> None:
    """LR1."""
    store.fates.extend(row)
    lock = await taken(marks, L7)
    store.fates.extend(row)
    await marks.release(lock)
    assert await marks.locked() == set()


async def test_a_lock_of_unknown_outcome_blocks_nobody_for_long(
    marks: Marks, store: FaultyStore
) -> None:
    store.fates.extend([Fate.ANSWER_LOST] * 6)
    with pytest.raises(OutcomeUnknown):
        await marks.take(L7, "worker-1")
    assert await marks.locked() == {L7}
    await taken(marks, L8)
    assert await marks.locked() == {L8}
    await taken(marks, L7)


async def test_a_mark_is_removed_from_the_version_that_was_read(
    marks: Marks, rival: MetadataStore
) -> None:
    """MK2, AR24, AR25: repaired, the task is deleted and the lock released; marked again, it stays."""
    await marks.mark(L7, [B1], 1)
    lock = await taken(marks, L7)
    found = await marks.read(L7)
    assert found is not None
    await Marks(rival, ROOT).mark(L7, [B2], 2)
    assert not await marks.unmark(found, lock)
    found = await marks.read(L7)
    assert found is not None
    assert await marks.unmark(found, lock)
    assert await marks.unmark(found, lock), "gone is gone"
    await marks.release(lock)
    assert await rival.children(f"{U}/ledgers") == []
    assert await rival.children(f"{U}/locks") == []


@pytest.mark.parametrize("fate", LOST)
async def test_a_mark_is_removed_once_whatever_is_lost(
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


async def test_who_lost_the_lock_removes_no_mark(marks: Marks, rival: MetadataStore) -> None:
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


async def test_autorecovery_is_switched_off_and_on(marks: Marks, rival: MetadataStore) -> None:
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


async def test_the_delay_is_written_again(marks: Marks, rival: MetadataStore) -> None:
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


async def test_checks_say_when_they_were_completed(marks: Marks, rival: MetadataStore) -> None:
    for check in Checked:
        assert await marks.checked_at_ms(check) is None
        await marks.set_checked_at(check, 1700)
        await marks.set_checked_at(check, 1800)
        assert await marks.checked_at_ms(check) == 1800
        await rival.set(f"{U}/{check.value}", b"\xff\xff")
        assert await marks.checked_at_ms(check) is None


async def test_a_mark_loses_its_folder_and_is_made_all_the_same(
    marks: Marks, store: FaultyStore, rival: MetadataStore
) -> None:
    """Java's worker removes empty folders while our auditor marks."""

    async def folder_goes() -> None:
        await rival.delete(MARK_7.rpartition("/")[0])

    await marks.mark(LedgerId(7 + 65_536), [B1], 1)  # For the folders above.
    await rival.create(f"{U}/ledgers/0000/0000/0000")
    await rival.create(MARK_7.rpartition("/")[0])
    store.writes = 0
    store.before_write[2] = [folder_goes]  # 1: with its folder, which is there; 2: the mark alone.
    assert await marks.mark(L7, [B1], 1)
    assert await value_at(rival, MARK_7) == pack_mark(UnderreplicatedMark((B1,), 1))
    assert store.writes == 4, "and 3: its folder, 4: the mark"

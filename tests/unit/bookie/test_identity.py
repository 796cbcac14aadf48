"""Identity on disks and in the metadata store, and interruptions at every step that changes it."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.identity import STAMP, StartDecision
from rollbook.bookie.core.record_format import FILE_HEADER_BYTES, unpack_file_header
from rollbook.bookie.core.suggested_commands import FORMAT, REJOIN, WRITE_OFF
from rollbook.bookie.identity import Formatted, Identity
from rollbook.bookie.storage import Storage
from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.cluster.cookies import CookieNodes, MemberNodes
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import (
    BadConfig,
    BookieReadOnly,
    DataLost,
    DirectoryInUse,
    EntryStateUnknown,
    LedgerFenced,
    NodeExists,
    NoSuchLedger,
    RollbookError,
    WrongBookie,
    WrongCluster,
)
from rollbook.proto.formats.paths import INSTANCE_ID
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import CreateMode, Disk, MetadataStore, OpenMode
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.messages import raises_message
from tests.simulation.kernel import Node, World
from tests.unit.bookie.serving import add_entries

ROOT = "/ledgers"
WHERE = MetadataUrl.parse(f"zk://zk1{ROOT}")
BK1, BK2 = BookieId("bk-1"), BookieId("bk-2")
STORAGE = StorageConfig("/j", ("/l1", "/l2"), journal_file_bytes=64 * 1024, idle_after_ms=20)
DIRECTORIES = ("/j", "/l1", "/l2")
OPEN, CLOSED, NOT_OURS = LedgerId(1), LedgerId(2), LedgerId(3)

Work = Callable[[Node, Identity], Awaitable[Any]]
OnStep = Callable[[str], Awaitable[None]]


# These calls change nothing, so an interruption at them needs no test.
LOOKING = frozenset(("get", "children", "stat", "size", "read_at", "list_directory", "space"))
AT_ONCE = frozenset(("prefetch", "session_events"))  # These are not coroutines.


class Stepping:
    """A port on which each call that changes something begins with a step."""

    def __init__(self, target: Any, on_step: OnStep) -> None:
        self._target = target
        self._on_step = on_step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in AT_ONCE or not callable(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            if name not in LOOKING:
                await self._on_step(name)
            result = await found(*arguments, **options)
            return Stepping(result, self._on_step) if name == "open" else result

        return call


class Village:
    """A cluster, and the machine of one bookie."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.node = self.world.node("b1")
        self.steps = 0
        self.cut_at: int | None = None
        self.cut: Callable[[], None] = self.node.kill

    def run(self, story: Callable[["Village"], Awaitable[None]]) -> None:
        async def scenario() -> None:
            self.store = await self.world.node("eyes").metadata()
            self.cluster = await initialise(self.store, ROOT, self.world.random("cluster"))
            await story(self)
            self.node.kill()
            await self.store.close()

        self.world.run(scenario())

    async def live(
        self,
        work: Work,
        bookie_id: BookieId = BK1,
        config: StorageConfig = STORAGE,
        node: Node | None = None,
    ) -> Any:
        """Runs this work in a process; returns None if it was interrupted."""
        self.steps = 0

        async def main(node: Node) -> Any:
            store = await node.metadata()
            disk = cast(Disk, Stepping(node.disk, self._on_step))
            stepping = cast(MetadataStore, Stepping(store, self._on_step))
            cluster = await open_cluster(store, ROOT, url=WHERE)
            identity = Identity(disk, config, node.randomness, stepping, cluster, bookie_id)
            try:
                return await work(node, identity)
            finally:
                await store.close()

        process = (node or self.node).start(main)
        try:
            return await process.result
        except asyncio.CancelledError:
            assert self.cut_at is not None
            return None

    async def _on_step(self, _name: str) -> None:
        self.steps += 1
        if self.steps == self.cut_at:
            self.cut()
            await asyncio.get_running_loop().create_future()

    async def make_ledger(self, ledger_id: LedgerId, bookie: BookieId, *, closed: bool) -> None:
        metadata = LedgerMetadata(
            ledger_id,
            Quorum(1, 1, 1),
            (Fragment(EntryId(0), (bookie,)),),
            digest_type=DigestType.CRC32C,
            password=b"",
            created_ms=0,
            creation_token=1,
        )
        nodes = LedgerNodes(self.store, ROOT, self.cluster.layout)
        stored = await nodes.create(metadata)
        if closed:
            await nodes.update(stored, metadata.with_close(EntryId(9), 70))


async def establish(_node: Node, identity: Identity) -> str:
    locks = await identity.establish()
    await identity.begin()
    for lock in locks:
        await lock.release()
    return identity.incarnation


async def format_(_node: Node, identity: Identity) -> str:
    return (await identity.format(0.0)).incarnation


async def rejoin(_node: Node, identity: Identity) -> str:
    return await identity.rejoin()


async def write_off(node: Node, identity: Identity) -> str:
    return (await identity.write_off(node.clock)).incarnation


async def write_off_after_loss(node: Node, identity: Identity) -> str:
    await remove(node, "/j")
    return await write_off(node, identity)


async def look(_node: Node, identity: Identity) -> Any:
    return await identity.diagnose()


def storing(use: Callable[[Storage], Awaitable[Any]]) -> Work:
    """The result of `use` on the storage of an established bookie."""

    async def work(node: Node, identity: Identity) -> Any:
        locks = await identity.establish()
        config = replace(STORAGE, ledger_dirs=identity.cookie.ledger_dirs)
        storage = await Storage.open(node.disk, config, node.clock, node.randomness, locks=locks)
        await identity.begin()
        storage.start()
        try:
            return await use(storage)
        finally:
            await storage.close()

    return work


async def fill(storage: Storage) -> None:
    for ledger_id in (OPEN, CLOSED):
        await add_entries(storage, ledger_id, range(10))


async def answers(storage: Storage) -> list[type[RollbookError] | int]:
    """For the first entry of each ledger: its size, or the error's type."""
    found: list[type[RollbookError] | int] = []
    for ledger_id in (OPEN, CLOSED, NOT_OURS):
        try:
            found.append(len(await storage.read(ledger_id, 0)))
        except RollbookError as error:
            found.append(type(error))
    return found


async def fences(storage: Storage) -> list[bool]:
    return [storage.is_fenced(ledger_id) for ledger_id in (OPEN, CLOSED, NOT_OURS)]


async def make_three_ledgers(village: Village) -> None:
    """Creates three ledgers with drawn ids."""
    while await LedgerIds(village.store, ROOT).draw() < max(OPEN, CLOSED, NOT_OURS):
        pass
    await village.make_ledger(OPEN, BK1, closed=False)
    await village.make_ledger(CLOSED, BK1, closed=True)
    await village.make_ledger(NOT_OURS, BK2, closed=False)


async def remove(node: Node, directory: str) -> None:
    """Empties a directory, as if its disk had been replaced."""
    for name in await node.disk.list_directory(directory):
        await node.disk.unlink(f"{directory}/{name}")
    await node.disk.sync_directory(directory)


# --- Single operations -----------------------------------------------------------------------


def test_new_bookie_keeps_its_identity_on_restart() -> None:
    """B8."""

    async def story(village: Village) -> None:
        first = await village.live(establish)
        assert first == await village.live(establish)
        member = await MemberNodes(village.store, village.cluster).read(BK1)
        assert member.record
        assert (member.record.incarnation, member.cookie is not None) == (first, True)
        assert await CookieNodes(village.store, ROOT).list() == [BK1]
        for directory in DIRECTORIES:
            assert village.node.disk.durable(f"{directory}/{STAMP}")

    Village().run(story)


def test_wiped_bookie_is_refused_until_formatted() -> None:
    """B8: a response of "absent" would be taken for proof."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill))
        village.node.disk.wipe()
        with pytest.raises(WrongBookie) as refused:
            await village.live(establish)
        assert FORMAT in refused.value.next_step
        assert village.node.disk.system.find("/j") is None  # A refused start creates no directory.
        await village.live(format_)
        assert await village.live(storing(answers)) == [
            EntryStateUnknown,
            NoSuchLedger,  # Its end is known from metadata, so no recovery depends on this bookie.
            NoSuchLedger,
        ]

    Village().run(story)


def test_formatted_bookie_refuses_writers_of_open_ledgers() -> None:
    """B4: the fence is lost with the disks, but its promise still holds."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill))
        await village.live(format_)

        async def add(storage: Storage) -> None:
            await add_entries(storage, OPEN, [10])

        with pytest.raises(AssertionError, match=LedgerFenced.__name__):
            await village.live(storing(add))

    Village().run(story)


@pytest.mark.parametrize("loses", [format_, write_off_after_loss], ids=["format", "write-off"])
def test_bookie_that_lost_fences_refuses_writers_of_older_ledgers(loses: Work) -> None:
    """B13: this includes closed ledgers and those of other bookies."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill))
        await village.live(loses)
        newer = await LedgerIds(village.store, ROOT).draw()

        async def add(storage: Storage) -> None:
            # Writers are accepted only after everything is settled.
            if storage.catalog.doubts.everything:
                await storage.settle_everything(storage.doubts_stamp, 0)
            for ledger_id in (CLOSED, NOT_OURS):
                with pytest.raises(AssertionError, match=BookieReadOnly.__name__):
                    await add_entries(storage, ledger_id, [10])
                await add_entries(storage, ledger_id, [10], is_recovery=True)
            await add_entries(storage, newer, [10])

        for _ in range(2):  # The second start gives the same result.
            await village.live(storing(add))

    Village().run(story)


def test_closed_ledgers_with_chosen_ids_are_fenced_one_by_one() -> None:
    """B13: chosen ids are not covered by the limit on drawn ids."""

    async def story(village: Village) -> None:
        await village.live(storing(fill))
        await village.make_ledger(CLOSED, BK2, closed=True)
        await village.live(format_)

        async def add(storage: Storage) -> None:
            with pytest.raises(AssertionError, match=LedgerFenced.__name__):
                await add_entries(storage, CLOSED, [10])

        await village.live(storing(add))

    Village().run(story)


class Lying:
    """A metadata store that changes the first listing of our ledgers' directory."""

    def __init__(
        self, store: Any, when_listed: Callable[[list[str]], Awaitable[list[str]]]
    ) -> None:
        self._store = store
        self._when_listed = when_listed
        self._has_lied = False

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._store.children(path)
        if self._has_lied or f"L{OPEN:04}" not in names:
            return names
        self._has_lied = True
        return await self._when_listed(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_format_finds_a_ledger_missing_from_one_listing() -> None:
    """B8: otherwise reads of this open ledger would return ABSENT."""

    async def without_ours(names: list[str]) -> list[str]:
        return [name for name in names if name != f"L{OPEN:04}"]

    async def format_by_a_liar(_node: Node, identity: Identity) -> int:
        identity._store = cast(MetadataStore, Lying(identity._store, without_ours))
        formatted = await identity.format(0.0)
        return formatted.ledgers

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill))
        assert await village.live(format_by_a_liar) == 3
        assert (await village.live(storing(answers)))[0] is EntryStateUnknown

    Village().run(story)


def test_format_erases_nothing_if_the_cluster_changes() -> None:
    """B8: listings of another cluster say nothing about this cluster's ledgers."""

    async def story(village: Village) -> None:
        path = village.cluster.path(INSTANCE_ID)

        async def becomes_anothers(_names: list[str]) -> list[str]:
            await village.store.set(path, b"33333333-3333-3333-3333-333333333333")
            return []

        async def format_by_a_liar(_node: Node, identity: Identity) -> None:
            identity._store = cast(MetadataStore, Lying(identity._store, becomes_anothers))
            await identity.format(0.0)

        await make_three_ledgers(village)
        await village.live(storing(fill))
        ours = await village.store.get(path)
        assert ours
        with pytest.raises(WrongCluster):
            await village.live(format_by_a_liar)
        await village.store.set(path, ours.value)
        assert isinstance((await village.live(storing(answers)))[0], int)

    Village().run(story)


def test_format_waits_until_the_bookie_is_unregistered() -> None:
    async def story(village: Village) -> None:
        await village.live(establish)
        path = f"{ROOT}/available/{BK1}"
        await village.store.create(path, b"", CreateMode.EPHEMERAL)
        with raises_message(NodeExists) as refused:
            await village.live(format_)
        assert refused.value.ids["session"] == f"{village.store.session:#x}"
        await village.store.delete(path)
        await village.store.create(path)  # A permanent node, created by an operator by mistake.
        with pytest.raises(NodeExists) as refused:
            await village.live(format_)
        assert refused.value.next_step == f"zkCli.sh -server zk1:2181 delete {path}"

        async def patiently(_node: Node, identity: Identity) -> str:
            return (await identity.format(10.0)).incarnation

        async def leave() -> None:
            await asyncio.sleep(3)
            await village.store.delete(path)

        leaving = asyncio.get_running_loop().create_task(leave())
        assert await village.live(patiently)
        await leaving

    Village().run(story)


def test_second_establish_of_locked_directories_is_refused() -> None:
    async def story(village: Village) -> None:
        async def twice(node: Node, identity: Identity) -> None:
            locks = await identity.establish()
            with pytest.raises(DirectoryInUse):
                await identity.establish()
            for lock in locks:
                await lock.release()

        # The simulator's locks are per machine; a process cannot lock a directory twice.
        await village.live(twice)

    Village().run(story)


def test_second_bookie_with_the_same_id_is_refused() -> None:
    """B8: it runs on another machine, with empty directories of the same names."""

    async def story(village: Village) -> None:
        await village.live(establish)
        other = village.world.node("b2")
        with raises_message(WrongBookie):
            await village.live(establish, node=other)

    Village().run(story)


def test_disks_of_another_bookie_are_not_served_or_formatted() -> None:
    async def story(village: Village) -> None:
        await village.live(storing(fill))
        for work in (establish, format_, rejoin, write_off):
            with raises_message(WrongBookie):
                await village.live(work, BK2)
        assert (await village.live(storing(answers)))[0] != NoSuchLedger

    Village().run(story)


def test_disks_of_another_cluster_are_not_served_or_formatted() -> None:
    async def story(village: Village) -> None:
        await village.live(storing(fill))
        await village.store.set(f"{ROOT}/INSTANCEID", b"00000000-0000-4000-8000-000000000000")
        await village.store.delete(f"{village.cluster.own_root}/bookies/{BK1}")
        await village.store.delete(f"{village.cluster.own_root}/bookies")
        await village.store.delete(village.cluster.own_root)
        for work in (establish, format_, rejoin, write_off):
            with pytest.raises(WrongCluster):
                await village.live(work)

    Village().run(story)


def test_bookie_without_cookie_rejoins_and_keeps_its_entries() -> None:
    async def story(village: Village) -> None:
        await village.live(storing(fill))
        await CookieNodes(village.store, ROOT).delete(BK1)
        with pytest.raises(WrongBookie) as refused:
            await village.live(establish)
        assert REJOIN in refused.value.next_step
        await village.live(rejoin)
        assert (await village.live(storing(answers)))[0] != NoSuchLedger

    Village().run(story)


def test_wiped_bookie_without_cookie_is_not_new() -> None:
    """B8: BookKeeper's tools remove cookies, but not Rollbook's record."""

    async def story(village: Village) -> None:
        await village.live(establish)
        await CookieNodes(village.store, ROOT).delete(BK1)
        village.node.disk.wipe()
        with pytest.raises(WrongBookie) as refused:
            await village.live(establish)
        assert FORMAT in refused.value.next_step

    Village().run(story)


def test_moved_directories_can_rejoin() -> None:
    async def story(village: Village) -> None:
        first = await village.live(establish)
        moved = replace(STORAGE, journal_dir="/elsewhere/j")
        node = village.node
        await node.disk.make_directory("/elsewhere")
        await node.disk.rename("/j", "/elsewhere/j")
        with pytest.raises(WrongBookie):
            await village.live(establish, config=moved)
        assert await village.live(rejoin, config=moved) == first
        assert await village.live(establish, config=moved) == first

    Village().run(story)


def test_new_ledger_directory_can_rejoin() -> None:
    async def story(village: Village) -> None:
        first = await village.live(establish)
        more = replace(STORAGE, ledger_dirs=(*STORAGE.ledger_dirs, "/l3"))
        with raises_message(WrongBookie):
            await village.live(establish, config=more)
        assert await village.live(rejoin, config=more) == first
        assert await village.live(establish, config=more) == first
        with raises_message(WrongBookie):
            await village.live(establish)

    Village().run(story)


def test_entries_are_unknown_after_journal_write_off() -> None:
    """B8: entries and fences that it may have held are UNKNOWN."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill))
        await remove(village.node, "/j")
        with pytest.raises(WrongBookie) as refused:
            await village.live(establish)
        assert WRITE_OFF in refused.value.next_step
        with pytest.raises(WrongBookie):
            await village.live(rejoin)
        await village.live(write_off)
        assert await village.live(storing(answers)) == [EntryStateUnknown] * 3
        assert await village.live(storing(fences)) == [True, False, False]

    Village().run(story)


async def fill_more(storage: Storage) -> None:
    """Adds entries to logs in both directories and to the journal."""
    for first in range(0, 2000, 100):
        for ledger_id in (OPEN, CLOSED):
            await add_entries(storage, ledger_id, range(first, first + 100), bytes(100))
    for _ in range(100):
        if not storage.stats.journal_files_waiting():
            break
        await asyncio.sleep(0.1)
    assert len(storage.catalog.logs) > 3


async def count_answers(storage: Storage) -> dict[str, int]:
    """Counts the results of reading every added entry."""
    found: dict[str, int] = {}
    for ledger_id in (OPEN, CLOSED):
        for entry_id in range(2000):
            try:
                await storage.read(ledger_id, entry_id)
                answer = "have"
            except RollbookError as error:
                answer = type(error).__name__
            found[answer] = found.get(answer, 0) + 1
    return found


@pytest.mark.parametrize("lost", DIRECTORIES)
def test_write_off_of_any_directory_keeps_the_other_entries(lost: str) -> None:
    """B8: lost entries are never reported as absent."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(storing(fill_more))
        await remove(village.node, lost)
        refusal = await refusal_of(village)
        assert refusal
        assert WRITE_OFF in refusal.next_step
        await village.live(write_off)
        answers = await village.live(storing(count_answers))
        assert set(answers) <= {"have", "EntryStateUnknown"}
        assert answers["have"] > 500

    Village().run(story)


@pytest.mark.parametrize("lost", DIRECTORIES)
def test_write_off_reports_how_much_is_unknown(lost: str) -> None:
    """Ledgers in doubt may be closed ones: a lost log may have held only those."""

    async def give_up(node: Node, identity: Identity) -> Formatted:
        return await identity.write_off(node.clock)

    async def unknown(storage: Storage) -> tuple[int, bool]:
        doubts = storage.catalog.doubts
        return doubts.ledgers, doubts.everything

    async def story(village: Village) -> None:
        while await LedgerIds(village.store, ROOT).draw() < max(OPEN, CLOSED):
            pass
        for ledger_id in (OPEN, CLOSED):
            await village.make_ledger(ledger_id, BK1, closed=True)
        await village.live(storing(fill_more))
        await remove(village.node, lost)
        done = await village.live(give_up)
        assert (done.doubted, done.doubts_everything) == await village.live(storing(unknown))
        assert done.doubted or done.doubts_everything

    Village().run(story)


def test_damaged_stamp_is_rewritten_by_rejoin() -> None:
    async def story(village: Village) -> None:
        first = await village.live(storing(fill))
        first = await village.live(establish)
        disk = village.node.disk
        file = await disk.open("/l1/VERSION", OpenMode.WRITE)
        await file.write_at(20, [b"?"])
        await file.close()
        refusal = await refusal_of(village)
        assert refusal
        assert REJOIN in refusal.next_step
        assert await village.live(rejoin) == first
        assert isinstance((await village.live(storing(answers)))[0], int)

    Village().run(story)


def test_directories_of_two_bookies_are_never_mixed() -> None:
    """This holds even without a stamp, since files carry the store's id as well."""

    async def story(village: Village) -> None:
        await village.live(storing(fill))
        others = replace(STORAGE, journal_dir="/x/j", ledger_dirs=("/x/l1", "/x/l2"))
        await village.live(establish, BK2, others)
        disk = village.node.disk
        for name in (STAMP, "lock"):
            await disk.unlink(f"/x/l2/{name}")
        mixed = replace(STORAGE, ledger_dirs=("/l1", "/x/l2"))
        await village.live(rejoin, config=mixed)
        with raises_message(WrongCluster):
            await village.live(storing(answers), config=mixed)

    Village().run(story)


def test_doctor_changes_nothing() -> None:
    async def story(village: Village) -> None:
        assert (await village.live(look)).standing is StartDecision.NEW
        assert village.node.disk.system.find("/j") is None
        member = await MemberNodes(village.store, village.cluster).read(BK1)
        assert member.cookie_node is member.record_node is None
        await village.live(establish)
        assert (await village.live(look)).standing is StartDecision.MEMBER

    Village().run(story)


@pytest.mark.parametrize(
    ("directory", "suffix", "remedy"),
    [("/j", ".journal", WRITE_OFF), ("/l1", "", FORMAT)],
)
def test_doctor_reports_a_missing_file(directory: str, suffix: str, remedy: str) -> None:
    """It reports the same files, with the same advice, as opening the storage."""

    async def story(village: Village) -> None:
        await village.live(storing(fill))
        disk = village.node.disk
        for name in await disk.list_directory(directory):
            if name.endswith(suffix) and name not in (STAMP, "lock"):
                await disk.unlink(f"{directory}/{name}")
        for name in await disk.list_directory("/l2"):
            # Also removes the other copy of the catalog.
            if not suffix and name not in (STAMP, "lock"):
                await disk.unlink(f"/l2/{name}")
        diagnosis = await village.live(look)
        assert diagnosis.standing is StartDecision.REFUSED
        assert remedy in diagnosis.problems[0].remedy
        with pytest.raises((DataLost, BadConfig)) as refused:
            await village.live(storing(answers))
        assert remedy in refused.value.next_step

    Village().run(story)


Damage = Callable[[Disk], Awaitable[None]]


async def last_of(disk: Disk, directory: str, suffix: str, *, at: int = -1) -> str:
    names = [name for name in await disk.list_directory(directory) if name.endswith(suffix)]
    return f"{directory}/{names[at]}"


async def overwrite(disk: Disk, path: str, contents: bytes, mode: OpenMode) -> None:
    file = await disk.open(path, mode)
    await file.write_and_sync(0, [contents])
    await file.close()


async def read_start(disk: Disk, path: str, size: int) -> bytes:
    file = await disk.open(path, OpenMode.READ)
    contents = await file.read_at(0, size)
    await file.close()
    return contents


async def cut_short(disk: Disk, path: str, size: int) -> None:
    file = await disk.open(path, OpenMode.WRITE)
    await file.truncate(size)
    await file.sync()
    await file.close()


async def take_the_header(disk: Disk) -> None:
    path = await last_of(disk, "/j", ".journal", at=0)
    await overwrite(disk, path, bytes(FILE_HEADER_BYTES), OpenMode.WRITE)


async def give_the_header_of_another_store(disk: Disk) -> None:
    path = await last_of(disk, "/j", ".journal", at=0)
    header = unpack_file_header(await read_start(disk, path, FILE_HEADER_BYTES))
    assert header
    theirs = replace(header, store_id=bytes(len(header.store_id))).pack()
    await overwrite(disk, path, theirs, OpenMode.WRITE)


async def cut_the_journal(disk: Disk) -> None:
    await cut_short(disk, await last_of(disk, "/j", ".journal", at=0), 2 * FILE_HEADER_BYTES)


async def cut_a_spare_file(disk: Disk) -> None:
    await cut_short(disk, await last_of(disk, "/j", ".journal"), 2 * FILE_HEADER_BYTES)


async def cut_a_log(disk: Disk) -> None:
    await cut_short(disk, await last_of(disk, "/l1", ".log"), 4096)


async def take_a_log(disk: Disk) -> None:
    await disk.unlink(await last_of(disk, "/l2", ".log"))


async def take_a_journal_file(disk: Disk) -> None:
    await disk.unlink(await last_of(disk, "/j", ".journal", at=0))


async def bring_a_later_journal_file(disk: Disk) -> None:
    contents = await read_start(disk, await last_of(disk, "/j", ".journal", at=0), 8192)
    await overwrite(disk, "/j/0000000000000999.journal", contents, OpenMode.CREATE)


async def bring_a_later_log(disk: Disk) -> None:
    contents = await read_start(disk, await last_of(disk, "/l1", ".log"), 8192)
    await overwrite(disk, "/l2/0000000000000999.log", contents, OpenMode.CREATE)


async def ruin_both_catalogs(disk: Disk) -> None:
    for directory, suffix in (("/l1", ".a"), ("/l2", ".b")):
        path = await last_of(disk, directory, suffix)
        contents = await read_start(disk, path, 1 << 20)
        at = FILE_HEADER_BYTES
        await overwrite(
            disk, path, contents[:at] + bytes(800) + contents[at + 800 :], OpenMode.WRITE
        )


@pytest.mark.parametrize(
    "damage",
    [
        take_the_header,
        give_the_header_of_another_store,
        cut_the_journal,
        cut_a_spare_file,
        cut_a_log,
        take_a_log,
        take_a_journal_file,
        bring_a_later_journal_file,
        bring_a_later_log,
        ruin_both_catalogs,
    ],
)
def test_doctor_reports_the_same_refusal_as_a_start(damage: Damage) -> None:
    """Message and advice are the same, for every kind of damage."""

    async def story(village: Village) -> None:
        await village.live(storing(fill_more))
        assert (await village.live(look)).standing is StartDecision.MEMBER
        await damage(village.node.disk)
        diagnosis = await village.live(look)
        with pytest.raises((DataLost, WrongCluster)) as refused:
            await village.live(storing(answers))
        assert diagnosis.standing is StartDecision.REFUSED
        said = [(each.what, each.remedy) for each in diagnosis.problems]
        assert (refused.value.message, refused.value.next_step) in said

    Village().run(story)


@pytest.mark.parametrize("cut_at", range(12, 54, 6))
def test_doctor_finds_no_problem_after_a_kill(cut_at: int) -> None:
    """A start truncates journal files after their end, so they are shorter than when created."""

    async def story(village: Village) -> None:
        await village.live(storing(fill_more))
        village.cut_at = cut_at
        assert await village.live(storing(add_more)) is None
        village.cut_at = None
        assert (await village.live(look)).problems == ()
        await village.live(storing(answers))
        assert (await village.live(look)).problems == ()

    async def add_more(storage: Storage) -> bool:
        await add_entries(storage, OPEN, range(2000, 2010))
        await fill_more(storage)
        return True

    Village().run(story)


def test_doctor_detects_a_running_bookie() -> None:
    async def story(village: Village) -> None:
        async def look_twice(node: Node, identity: Identity) -> None:
            locks = await identity.establish()
            assert (await identity.diagnose()).is_running
            for lock in locks:
                await lock.release()
            assert not (await identity.diagnose()).is_running

        await village.live(look_twice)

    Village().run(story)


# --- Copies of the directories --------------------------------------------------------------------


def test_directories_restored_from_a_copy_are_refused_until_written_off() -> None:
    """B8: entries acknowledged since are in doubt, not absent."""

    async def story(village: Village) -> None:
        await make_three_ledgers(village)
        await village.live(establish)
        copy = village.node.disk.image()
        await village.live(storing(fill))
        village.node.disk.put_back(copy)
        for work in (establish, rejoin):
            with raises_message(WrongBookie) as refused:
                await village.live(work)
            assert WRITE_OFF in refused.value.next_step
        await village.live(write_off)
        assert await village.live(storing(answers)) == [
            EntryStateUnknown,
            NoSuchLedger,  # Its end is known from metadata.
            NoSuchLedger,
        ]
        assert await village.live(storing(fences)) == [True, False, False]

    Village().run(story)


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_single_restored_directory_is_refused(directory: str) -> None:
    async def story(village: Village) -> None:
        await village.live(establish)
        stamp = f"{directory}/{STAMP}"
        old = village.node.disk.durable(stamp)
        await village.live(establish)
        file = await village.node.disk.open(stamp, OpenMode.WRITE)
        assert old
        await file.write_and_sync(0, [old])
        await file.close()
        with raises_message(WrongBookie) as refused:
            await village.live(establish)
        assert refused.value.ids["path"] == directory

    Village().run(story)


def test_only_the_first_of_two_copies_to_start_serves() -> None:
    """B8: a copy that starts later is refused."""

    async def story(village: Village) -> None:
        await village.live(storing(fill))
        other = village.world.node("b2")
        other.disk.put_back(village.node.disk.image())
        assert isinstance((await village.live(storing(answers), node=other))[0], int)
        with raises_message(WrongBookie):
            await village.live(establish)
        assert await village.live(establish, node=other)

    Village().run(story)


def test_only_one_of_two_copies_starting_at_once_serves() -> None:
    async def story(village: Village) -> None:
        await village.live(establish)
        other = village.world.node("b2")
        other.disk.put_back(village.node.disk.image())
        outcomes = await asyncio.gather(
            *(village.live(establish, node=node) for node in (village.node, other)),
            return_exceptions=True,
        )
        refused = [isinstance(each, WrongBookie) for each in outcomes]
        assert sorted(refused) == [False, True]
        # The loser is still refused later, since it lacks what the winner acknowledged.
        loser = (village.node, other)[refused.index(True)]
        with raises_message(WrongBookie):
            await village.live(establish, node=loser)
        winner = (village.node, other)[refused.index(False)]
        assert await village.live(establish, node=winner)

    for seed in range(20):
        Village(seed).run(story)


def test_bookie_starts_on_a_full_disk() -> None:
    async def story(village: Village) -> None:
        await village.live(establish)
        village.node.disk.capacity_bytes = village.node.disk.system.used_bytes
        await village.live(establish)
        village.node.disk.capacity_bytes = None
        await village.live(establish)

    Village().run(story)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_bookie_starts_despite_enospc_or_edquot(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exhausted quota is treated like a full disk."""

    async def refuse(name: str) -> None:
        if name == "write_and_sync":
            raise OSError(number, os.strerror(number))

    async def story(village: Village) -> None:
        made = await village.live(establish)
        monkeypatch.setattr(village, "_on_step", refuse)
        assert await village.live(establish) == made

    Village().run(story)


# --- Cuts at every step -----------------------------------------------------------------------


CUTS_BOTH_WAYS = (0, 2)
"""Seeds: steps that one of them cuts by a kill, the other one cuts by a power cut."""


def cut_everywhere(story: Callable[[Village], Awaitable[bool]], seed: int = 0) -> int:
    """Cuts the work at each of its steps in turn, by a kill or by a power cut.

    The seed decides what a power cut tears. The story returns whether it was cut
    off.
    """
    step, goes_on = 0, True
    while goes_on:
        step += 1
        village = Village(1000 * seed + step)
        village.cut_at = step
        village.cut = village.node.power_cut if (step + seed) % 4 >= 2 else village.node.kill
        outcome: list[bool] = []

        async def told(village: Village, outcome: list[bool] = outcome) -> None:
            outcome.append(await story(village))

        village.run(told)
        (goes_on,) = outcome
    return step - 1


async def refusal_of(village: Village) -> WrongBookie | None:
    try:
        await village.live(establish)
    except WrongBookie as error:
        return error
    return None


def test_write_off_survives_a_cut_at_every_step() -> None:
    """B8: repeated if necessary, it has the same result as without a cut."""

    async def story(village: Village) -> bool:
        cut_at, village.cut_at = village.cut_at, None
        await make_three_ledgers(village)
        await village.live(storing(fill))
        await remove(village.node, "/j")
        village.cut_at = cut_at
        done = await village.live(write_off)
        village.cut_at = None
        if refusal := await refusal_of(village):
            assert WRITE_OFF in refusal.next_step
            await village.live(write_off)
        assert await village.live(storing(answers)) == [EntryStateUnknown] * 3
        assert await village.live(storing(fences)) == [True, False, False]
        return done is None

    assert cut_everywhere(story) > 25


async def undisturbed(village: Village, work: Work) -> Any:
    village.cut_at = None
    return await village.live(work)


@pytest.mark.parametrize("seed", CUTS_BOTH_WAYS)
def test_bookie_creation_survives_a_cut_at_every_step(seed: int) -> None:
    """B8: the next start completes the creation or begins it again, without an operator."""

    async def story(village: Village) -> bool:
        made = await village.live(establish)
        incarnation = await undisturbed(village, establish)
        assert made in (None, incarnation)
        member = await MemberNodes(village.store, village.cluster).read(BK1)
        assert member.record
        assert member.record.incarnation == incarnation
        assert await undisturbed(village, storing(answers)) == [NoSuchLedger] * 3
        # It may have served, so it is not new even if its nodes are removed.
        await CookieNodes(village.store, ROOT).delete(BK1)
        await village.store.delete(f"{village.cluster.own_root}/bookies/{BK1}")
        assert await refusal_of(village)
        return made is None

    assert cut_everywhere(story, seed) > 25


@pytest.mark.parametrize("seed", CUTS_BOTH_WAYS)
def test_start_survives_a_cut_at_every_step(seed: int) -> None:
    """B8: the next start succeeds, and a copy of the interrupted state is refused."""

    async def story(village: Village) -> bool:
        cut_at, village.cut_at = village.cut_at, None
        await village.live(storing(fill))
        village.cut_at = cut_at
        started = await village.live(establish)
        copy = village.node.disk.image()
        assert isinstance((await undisturbed(village, storing(answers)))[0], int)
        village.node.disk.put_back(copy)
        assert await refusal_of(village)
        return started is None

    assert cut_everywhere(story, seed) > 10


@pytest.mark.parametrize("seed", CUTS_BOTH_WAYS)
def test_one_of_two_copies_serves_after_a_cut_at_every_step(seed: int) -> None:
    """B8: a start that was not announced has the same number as the other copy's."""

    async def story(village: Village) -> bool:
        cut_at, village.cut_at = village.cut_at, None
        await village.live(establish)
        other = village.world.node("b2")
        other.disk.put_back(village.node.disk.image())
        village.cut_at = cut_at
        started = await village.live(establish)
        village.cut_at = None
        try:
            await village.live(storing(fill), node=other)
        except WrongBookie:
            assert await village.live(establish)
        else:
            assert await refusal_of(village)
        return started is None

    assert cut_everywhere(story, seed) > 10


def test_format_survives_a_cut_at_every_step() -> None:
    """B8: either all earlier entries are kept, or the bookie must be formatted again."""

    async def story(village: Village) -> bool:
        await make_three_ledgers(village)
        cut_at, village.cut_at = village.cut_at, None
        before = await village.live(establish)
        await village.live(storing(fill))
        village.cut_at = cut_at
        formatted = await village.live(format_)
        village.cut_at = None
        if refusal := await refusal_of(village):
            assert FORMAT in refusal.next_step
            await village.live(format_)
        incarnation = await village.live(establish)
        found = await village.live(storing(answers))
        if incarnation == before:
            assert all(isinstance(answer, int) for answer in found[:2])
        else:
            assert found == [EntryStateUnknown, NoSuchLedger, NoSuchLedger]
        return formatted is None

    assert cut_everywhere(story) > 25


def test_rejoin_survives_a_cut_at_every_step() -> None:
    async def story(village: Village) -> bool:
        cut_at, village.cut_at = village.cut_at, None
        before = await village.live(storing(fill))
        before = await village.live(establish)
        await CookieNodes(village.store, ROOT).delete(BK1)
        village.cut_at = cut_at
        rejoined = await village.live(rejoin)
        village.cut_at = None
        if refusal := await refusal_of(village):
            assert REJOIN in refusal.next_step
            assert await village.live(rejoin) == before
        assert isinstance((await village.live(storing(answers)))[0], int)
        return rejoined is None

    assert cut_everywhere(story) > 10

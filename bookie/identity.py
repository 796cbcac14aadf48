"""Checks, makes and repairs a bookie's identity on its disks and in the metadata store.

All this is done under the locks of the directories. The order of the steps ensures that after a
crash between any two of them the next attempt can continue (`core/identity.py`):

    join      stamps JOINING · an empty store · both nodes · stamps MEMBER
    format    stamps FORMATTING · files removed · a store with doubts · both nodes · stamps MEMBER
    rejoin    stamps MEMBER with the present cookie · both nodes
    write-off stamps WRITING_OFF · the store opens without the lost parts · doubts · both nodes ·
              stamps MEMBER
    start     stamps with its number · our own node
"""

import asyncio
import errno
from array import array
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import Final

import structlog

from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.identity import (
    STAMP,
    STAMP_BYTES_MAX,
    Diagnosis,
    DirectoryCondition,
    DirectoryId,
    FoundStamps,
    IdentityProblem,
    MembershipState,
    Stamp,
    StampedDirectory,
    StartDecision,
    can_rejoin,
    can_write_off,
    condition_of,
    diagnose,
    is_of_a_store,
    may_have_held,
    pack_stamp,
    places_of,
    unpack_stamp,
    why_not_to_erase,
)
from rollbook.bookie.core.suggested_commands import FORMAT
from rollbook.bookie.inspection import StoreFiles
from rollbook.bookie.storage import Storage
from rollbook.bookie.store_opening import lock_directories, make_directories
from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root, require_cluster
from rollbook.proto.cluster.cookies import Member, MemberNodes
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.registration import id_taken
from rollbook.proto.cluster.uncertain_writes import read_surely
from rollbook.proto.errors import (
    BadConfig,
    BadMetadata,
    DataLost,
    DirectoryInUse,
    MetadataConflict,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
    UnsupportedVersion,
    WrongBookie,
    WrongCluster,
)
from rollbook.proto.formats import paths
from rollbook.proto.formats.bookie_incarnation import BookieRecord
from rollbook.proto.formats.cookie import Cookie
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.ports import Clock, Disk, DiskLock, MetadataStore, Node, OpenMode, Randomness

logger = structlog.get_logger()

OnProgress = Callable[[int], None]

_INCARNATION_BYTES: Final = 16
_STARTER_BYTES: Final = 8
_READS_AT_ONCE: Final = 64  # The number of concurrent reads of ledger metadata.
_LOOK_AGAIN_S: Final = 0.5
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Formatted:
    """The state with which a bookie starts after it was formatted or lost data."""

    incarnation: str
    ledgers: int  # The number of ledgers in the cluster.
    # The number of ledgers for which the bookie answers UNKNOWN about entries that it may have
    # lost.
    doubted: int
    # Whether the bookie answers UNKNOWN about all other ledgers, too.
    doubts_everything: bool = False


class Identity:
    """The identity of one bookie as the configuration gives it."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        randomness: Randomness,
        store: MetadataStore,
        cluster: Cluster,
        bookie_id: BookieId,
    ) -> None:
        self.bookie_id = bookie_id
        self.cookie = Cookie(
            bookie_id, (config.journal_dir,), config.ledger_dirs, (), cluster.instance_id
        )
        self.incarnation = ""  # Set by `establish`.
        self._disk = disk
        self._config = config
        self._randomness = randomness
        self._store = store
        self._cluster = cluster
        self._nodes = MemberNodes(store, cluster)

    # --- Commands -----------------------------------------------------------------------------

    async def diagnose(self) -> Diagnosis:
        """Compares directories and nodes, and changes nothing."""
        diagnosis = await self._judge()
        if diagnosis.standing not in (StartDecision.MEMBER, StartDecision.JOINED):
            return diagnosis
        try:
            locks = await lock_directories(self._disk, self._config)
        except DirectoryInUse:
            # The files of a running bookie change, so a missing file proves nothing.
            return replace(diagnosis, is_running=True)
        try:
            problems = [problem async for problem in self._missing_files()]
        finally:
            await _release(locks)
        if problems:
            return replace(diagnosis, standing=StartDecision.REFUSED, problems=tuple(problems))
        return diagnosis

    async def _judge(self) -> Diagnosis:
        found, _ = await self._look()
        return diagnose(found, self.cookie)

    async def _missing_files(self) -> AsyncIterator[IdentityProblem]:
        """Yields the problems that would keep the storage from opening."""
        try:
            store = await StoreFiles.open(self._disk, self._config, self._randomness)
        except DataLost as error:
            path = error.ids.get("path", self._config.ledger_dirs[0])
            yield IdentityProblem(str(error.message), error.next_step, path)
            return
        except BadConfig as error:
            path = error.ids.get("path", self._config.ledger_dirs[0])
            remedy = f"bring it back; if it is permanently lost: {FORMAT}"
            yield IdentityProblem(str(error.message), remedy, path)
            return
        async for loss in store.losses():
            yield IdentityProblem(loss.what, loss.remedy, loss.path)

    async def establish(
        self, before_making: Callable[[], Awaitable[None]] | None = None
    ) -> list[DiskLock]:
        """Makes a new bookie's identity, or accepts an existing one; returns its directories,
        locked.

        `before_making` may raise an error before anything is made, because an id is permanent.
        Raises `WrongBookie` or `WrongCluster`, each with its next step, and `DirectoryInUse`.
        """
        # The directories are checked first, because otherwise one could be made at a mount point
        # without its disk.
        standing = await self._require_fit()
        if standing is StartDecision.NEW and before_making:
            await before_making()
        locks = await self._lock()
        try:
            await self._establish()
        except BaseException:
            await _release(locks)
            raise
        return locks

    async def _require_fit(self) -> StartDecision:
        diagnosis = await self._judge()
        if diagnosis.standing is StartDecision.REFUSED:
            raise _refusal(diagnosis.problems)
        return diagnosis.standing

    async def _establish(self) -> None:
        found, member = await self._look()
        diagnosis = diagnose(found, self.cookie)
        match diagnosis.standing:
            case StartDecision.REFUSED:
                raise _refusal(diagnosis.problems)
            case StartDecision.NEW:
                incarnation = self._draw_incarnation()
                await self._begin(incarnation, MembershipState.JOINING, member)
                logger.info("bookie_made", bookie=self.bookie_id, incarnation=incarnation)
            case _:
                incarnation = diagnosis.incarnation
        if diagnosis.standing is StartDecision.JOINED:
            assert member.record
            await self._stamp_all(member.record, MembershipState.MEMBER)
        self.incarnation = incarnation

    async def begin(self) -> bool:
        """Counts this start, so that no other copy of the directories can be mistaken for them.
        After that the contents of the directories may change (B8).

        Returns False if the disk has no room to count the start. Until the start is counted, the bookie
        must promise nothing. Raises `WrongBookie` if another copy of the directories started first.
        """
        found, member = await self._look()
        diagnosis = diagnose(found, self.cookie)
        if diagnosis.standing is StartDecision.REFUSED:
            raise _refusal(diagnosis.problems)
        record = self._draw_record(self.incarnation, found.next_start)
        try:
            await self._stamp_all(record, MembershipState.MEMBER)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            logger.warning("start_not_counted", bookie=self.bookie_id, reason=str(error))
            return False
        try:
            await self._nodes.write_record(member, self.bookie_id, record)
        except (MetadataConflict, NoSuchNode):
            raise WrongBookie(
                "a bookie with this id is starting elsewhere",
                bookie=self.bookie_id,
                next_step="start one of them",
            ) from None
        return True

    async def format(
        self, patience_s: float, on_progress: OnProgress = lambda _: None
    ) -> Formatted:
        """Erases the directories and begins a new life under an id that may have been used before.

        In the new life, entries of the earlier life in unclosed ledgers are UNKNOWN. An earlier
        process gets `patience_s` to end.
        """
        locks = await self._lock()
        try:
            await self._require_gone(patience_s)
            found, member = await self._look()
            if problem := why_not_to_erase(found, self.cookie):
                raise _refusal([problem])
            old_below = await self._draw_ledger_id()
            ledgers, doubted = await self._ledgers_in_doubt(old_below, on_progress)
            incarnation = self._draw_incarnation()
            await self._begin(incarnation, MembershipState.FORMATTING, member, doubted, old_below)
        finally:
            await _release(locks)
        logger.warning("bookie_formatted", bookie=self.bookie_id, incarnation=incarnation)
        return Formatted(incarnation, ledgers, len(doubted))

    async def rejoin(self) -> str:
        """Writes stamps and cookies again, if the directories certainly belong to this bookie.

        Use it after a cookie was removed, or after directories were moved, were added, or lost
        their stamp. Returns the incarnation. Raises `WrongBookie`, `WrongCluster`,
        `DirectoryInUse`.
        """
        locks = await self._lock()
        try:
            found, member = await self._look()
            if not can_rejoin(found, self.cookie):
                raise _refusal(diagnose(found, self.cookie).problems)
            incarnation = found.stamps[0].incarnation
            record = self._draw_record(incarnation, found.next_start)
            await self._stamp_all(record, MembershipState.MEMBER)
            await self._nodes.write(member, self.cookie, record)
        finally:
            await _release(locks)
        logger.info("bookie_rejoined", bookie=self.bookie_id, incarnation=incarnation)
        return incarnation

    async def write_off(self, clock: Clock, on_progress: OnProgress = lambda _: None) -> Formatted:
        """Lets the bookie go on without a lost directory, journal file or entry log, or from an
        older copy of them.

        The lost entries are UNKNOWN from then on, and ledgers whose fences may be lost are fenced.
        Raises `WrongBookie`, `WrongCluster`, `DirectoryInUse`; and `DataLost` or `BadConfig` if the
        rest is not enough for a store.
        """
        locks = await self._lock()
        try:
            found, member = await self._look()
            if not can_write_off(found, self.cookie):
                raise _refusal(diagnose(found, self.cookie).problems)
            incarnation = found.stamps[0].incarnation
            old_below = await self._draw_ledger_id()
            ledgers, doubted = await self._ledgers_in_doubt(old_below, on_progress)
            # The write-off counts as a start, because otherwise another copy of the directories
            # could be started.
            record = self._draw_record(incarnation, found.next_start)
            await self._stamp_all(record, MembershipState.WRITING_OFF)
        except BaseException:
            await _release(locks)
            raise
        storage = await Storage.open(
            self._disk, self._config, clock, self._randomness, accepts_loss=True, locks=locks
        )
        try:
            await storage.distrust(doubted, old_below)
            await self._nodes.write(member, self.cookie, record)
            await self._stamp_all(record, MembershipState.MEMBER)
            doubts = storage.catalog.doubts
            written_off = Formatted(incarnation, ledgers, doubts.ledgers, doubts.everything)
        finally:
            await storage.close()
        logger.warning(
            "loss_written_off",
            bookie=self.bookie_id,
            ledgers=written_off.doubted,
            everything=written_off.doubts_everything,
        )
        return written_off

    async def _begin(
        self,
        incarnation: str,
        state: MembershipState,
        member: Member,
        doubted: Sequence[int] = (),
        old_below: int = 0,
    ) -> None:
        """Makes a member without entries from directories whose contents are not needed."""
        record = self._draw_record(incarnation, 0)
        # From here on, no directory can be mistaken for one of an earlier life.
        await self._stamp_all(record, state)
        await self._remove_files()
        await Storage.make(
            self._disk, self._config, self._randomness, doubted=doubted, old_below=old_below
        )
        try:
            await self._nodes.write(member, self.cookie, record)
        except NodeExists:
            raise WrongBookie(
                "another bookie with this id is joining the cluster",
                bookie=self.bookie_id,
                next_step="give this one an id of its own",
            ) from None
        await self._stamp_all(record, MembershipState.MEMBER)

    # --- Directories --------------------------------------------------------------------------

    async def _lock(self) -> list[DiskLock]:
        await make_directories(self._disk, self._config)
        return await lock_directories(self._disk, self._config)

    async def _look(self) -> tuple[FoundStamps, Member]:
        member = await self._nodes.read(self.bookie_id)
        directories = [await self._look_at(place, path) for place, path in places_of(self.cookie)]
        record = member.record
        found = FoundStamps(
            tuple(directories),
            member.cookie,
            member.cookie_node is not None,
            record.incarnation if record else None,
            record.start if record else 0,
            record.starter if record else "",
        )
        return found, member

    async def _look_at(self, place: DirectoryId, path: str) -> StampedDirectory:
        if await self._disk.stat(path) is None:
            return StampedDirectory(path, place, DirectoryCondition.EMPTY)
        if await self._disk.stat(f"{path}/{STAMP}") is None:
            names = await self._disk.list_directory(path)
            others = [other for _, other in places_of(self.cookie) if other.startswith(f"{path}/")]
            on_the_way = {other[len(path) + 1 :].partition("/")[0] for other in others}
            return StampedDirectory(
                path, place, condition_of([n for n in names if n not in on_the_way])
            )
        file = await self._disk.open(f"{path}/{STAMP}", OpenMode.READ)
        try:
            data = await file.read_at(0, STAMP_BYTES_MAX)
        finally:
            await file.close()
        try:
            return StampedDirectory(path, place, DirectoryCondition.STAMPED, unpack_stamp(data))
        except BadMetadata:
            return StampedDirectory(path, place, DirectoryCondition.DAMAGED)

    async def _stamp_all(self, record: BookieRecord, state: MembershipState) -> None:
        for place, path in places_of(self.cookie):
            stamp = Stamp(
                self.cookie, record.incarnation, place, state, record.start, record.starter
            )
            await self._replace(path, STAMP, pack_stamp(stamp))

    async def _replace(self, directory: str, name: str, data: bytes) -> None:
        new, final = f"{directory}/{name}.new", f"{directory}/{name}"
        if await self._disk.stat(new) is not None:
            await self._disk.unlink(new)  # The file is left from an interrupted attempt.
        file = await self._disk.open(new, OpenMode.CREATE)
        try:
            await file.write_and_sync(0, [data])
        finally:
            await file.close()
        await self._disk.rename(new, final)
        await self._disk.sync_directory(directory)

    async def _remove_files(self) -> None:
        """Removes the files of a life that has ended or never began."""
        for _, path in places_of(self.cookie):
            for name in await self._disk.list_directory(path):
                if is_of_a_store(name):
                    await self._disk.unlink(f"{path}/{name}")
            await self._disk.sync_directory(path)

    # --- Cluster ------------------------------------------------------------------------------

    async def _require_gone(self, patience_s: float) -> None:
        """Waits until no session is registered under the id, not even the last session of a dead
        process."""
        looks_left = int(patience_s / _LOOK_AGAIN_S)
        while taken := await self._registration():
            if not looks_left:
                path, node = taken
                raise id_taken(
                    "a process is registered under this bookie id; nothing was changed",
                    path,
                    self.bookie_id,
                    node,
                    self._cluster.url,
                    "stop it first; if it is dead, run this command again when its session has expired",
                )
            looks_left -= 1
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _registration(self) -> tuple[str, Node] | None:
        for folder in (paths.AVAILABLE, paths.READ_ONLY):
            path = f"{self._cluster.path(folder)}/{self.bookie_id}"
            if (node := await read_surely(self._store, path)) is not None:
                return path, node
        return None

    async def _draw_ledger_id(self) -> LedgerId:
        """Draws a ledger id. All earlier ledgers have lower ids, except those whose ids clients
        chose."""
        return await LedgerIds(self._store, self._cluster.root).draw()

    async def _ledgers_in_doubt(
        self, old_below: LedgerId, on_progress: OnProgress
    ) -> tuple[int, list[int]]:
        """Returns how many ledgers exist, and which of them an earlier life may have held or
        fenced.

        Ledgers are listed twice, and before and after that the store is checked to still hold our
        cluster, because the bookie would answer ABSENT for a ledger that was not listed. Raises
        `WrongCluster`, `NoSuchCluster`.
        """
        nodes = LedgerNodes(self._store, self._cluster.root, self._cluster.layout)
        doubted: list[int] = []
        seen: array[int] = array("q")
        await ensure_own_root(self._store, self._cluster)
        await require_cluster(self._store, self._cluster)
        for _ in range(2):
            missed: array[int] = array("q")
            async for batch in _batches(nodes.ids(), known=seen):
                found = await asyncio.gather(
                    *(self._is_in_doubt(nodes, each, old_below) for each in batch)
                )
                doubted += [each for each, is_so in zip(batch, found, strict=True) if is_so]
                missed.extend(batch)
                on_progress(len(seen) + len(missed))
            seen = array("q", merge(seen, missed))
        await require_cluster(self._store, self._cluster)
        return len(seen), sorted(doubted)

    async def _is_in_doubt(
        self, nodes: LedgerNodes, ledger_id: LedgerId, old_below: LedgerId
    ) -> bool:
        try:
            stored = await nodes.read(ledger_id)
        except NoSuchLedger:
            return False
        except (BadMetadata, UnsupportedVersion):
            return True  # Unreadable metadata may name this bookie.
        metadata = stored.metadata
        # Ids that clients choose are above all ids that are drawn.
        may_have_fenced = metadata.is_closed and ledger_id >= old_below
        return may_have_fenced or may_have_held(metadata, self.bookie_id)

    def _draw_incarnation(self) -> str:
        return self._randomness.randbytes(_INCARNATION_BYTES).hex()

    def _draw_record(self, incarnation: str, start: int) -> BookieRecord:
        starter = self._randomness.randbytes(_STARTER_BYTES).hex()
        return BookieRecord(incarnation, start, starter)


async def _batches(
    ids: AsyncIterable[LedgerId], known: Sequence[int]
) -> AsyncIterator[list[LedgerId]]:
    """Yields batches of ids that are not in `known`; both ascend."""
    batch: list[LedgerId] = []
    at = 0
    async for ledger_id in ids:
        while at < len(known) and known[at] < ledger_id:
            at += 1
        if at < len(known) and known[at] == ledger_id:
            continue
        batch.append(ledger_id)
        if len(batch) == _READS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _refusal(problems: Sequence[IdentityProblem]) -> WrongBookie | WrongCluster:
    problem = problems[0]
    kind = WrongCluster if problem.is_wrong_cluster else WrongBookie
    ids = {"path": problem.path} if problem.path else {}
    return kind(problem.what, next_step=problem.remedy, **ids)


async def _release(locks: Sequence[DiskLock]) -> None:
    for lock in locks:
        await lock.release()

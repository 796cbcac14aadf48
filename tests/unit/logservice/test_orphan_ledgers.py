"""OR1: ledgers made for a log and never listed are found and deleted; no other ledger is."""

import asyncio

from rollbook.logservice.core.ledger_list import LogEvent, custom_metadata
from rollbook.logservice.ids import LogUid, Offset
from rollbook.logservice.log_deletion import delete_log, free_log
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.orphan_ledgers import YOUNG_MS, OrphanRepair, OrphanReport, belonging_of
from rollbook.proto.errors import MetadataConflict
from rollbook.proto.ids import LedgerId
from tests.unit.logservice.owner_scene import LOG, Scene, play, refused

OLD_S = YOUNG_MS / 1000 + 1


async def make(scene: Scene, stored: StoredLog, made_for: int | None = None) -> LedgerId:
    """Leaves a ledger as a server does that dies before it lists it."""
    version = stored.version if made_for is None else made_for
    custom = custom_metadata(stored.name, stored.list.uid, version)
    writer = await scene.ledgers.create(custom=custom)
    await writer.stop()
    return writer.ledger_id


async def repair(scene: Scene) -> OrphanReport:
    now_ms = scene.ledgers._clock.wall_us() // 1000
    return await OrphanRepair(scene.ledgers, scene.nodes, now_ms).run()


async def ledgers(scene: Scene) -> list[LedgerId]:
    return [ledger_id async for ledger_id in scene.ledgers.list()]


def test_unlisted_ledger_of_an_older_list_is_deleted() -> None:
    async def story(scene: Scene) -> None:
        stored = await scene.stored()
        orphan = await make(scene, stored)
        other = await scene.ledgers.create(custom={"application": b"another"})
        stored = await scene.nodes.bump(stored)
        assert await repair(scene) == OrphanReport(ledgers=1)  # Too young to be deleted.
        await asyncio.sleep(OLD_S)
        assert await repair(scene) == OrphanReport(ledgers=1, deleted=1)
        assert orphan not in await ledgers(scene)
        assert await ledgers(scene) == [other.ledger_id]
        assert await scene.stored() == stored  # The list is not changed.

    play(story)


def test_listing_a_deleted_orphan_conflicts() -> None:
    """LL8: the list's version is bumped before the ledger is deleted."""

    async def story(scene: Scene) -> None:
        stored = await scene.stored()
        orphan = await make(scene, stored)
        await asyncio.sleep(OLD_S)
        assert (await repair(scene)).deleted == 1
        await refused(
            scene.nodes.replace(
                stored, stored.list.with_successor(orphan, "late", 0), made_for=stored.version
            ),
            MetadataConflict,
        )
        assert (await scene.stored()).list == stored.list

    play(story)


def test_listed_and_discarded_ledgers_are_kept_at_any_age() -> None:
    async def story(scene: Scene) -> None:
        owner = await (await scene.server("s1")).open()
        await owner.append(b"0")
        await owner.run(owner.owner.roll("test"))
        await owner.append(b"1")
        await owner.close()
        stored = await scene.stored()
        stored = await scene.nodes.replace(stored, stored.list.with_head(Offset(1), Offset(2)))
        before = await ledgers(scene)
        assert len(before) == 2
        await asyncio.sleep(OLD_S)
        assert await repair(scene) == OrphanReport(ledgers=2)
        assert await ledgers(scene) == before
        assert await scene.stored() == stored

    play(story)


def test_ledger_listed_during_the_walk_is_kept() -> None:
    """The current list decides, not the list that the walk has read before."""

    async def story(scene: Scene) -> None:
        before = await scene.stored()
        owner = await (await scene.server("s1")).open()
        await owner.append(b"0")
        await owner.close()
        await asyncio.sleep(OLD_S)
        now_ms = scene.ledgers._clock.wall_us() // 1000
        walk = OrphanRepair(scene.ledgers, scene.nodes, now_ms)
        walk._lists[LOG] = before.list
        assert await walk.run() == OrphanReport(ledgers=1, left=1)
        assert await scene.values() == [b"0"]

    play(story)


def test_ledgers_of_a_removed_log_are_deleted() -> None:
    """Also if a new log has taken its name."""

    async def story(scene: Scene) -> None:
        stored = await scene.stored()
        await make(scene, stored)
        deleted = await delete_log(scene.nodes, LOG, 0, LogEvent("log_deleted", 0))
        assert await free_log(scene.ledgers, scene.nodes, deleted, now_us=1)
        await make(scene, stored)
        anew, _ = await scene.nodes.ensure(LOG, None)
        owner = await (await scene.server("s1")).open()
        await owner.close()
        await asyncio.sleep(OLD_S)
        assert await repair(scene) == OrphanReport(ledgers=3, deleted=2)
        assert len(await ledgers(scene)) == 1
        assert anew.list.uid != stored.list.uid

    play(story)


def test_ledger_newer_than_its_list_is_kept() -> None:
    """A list that is older than a ledger made for it was restored by hand."""

    async def story(scene: Scene) -> None:
        stored = await scene.stored()
        doubtful = await make(scene, stored, made_for=stored.version + 5)
        await asyncio.sleep(OLD_S)
        assert await repair(scene) == OrphanReport(ledgers=1, left=1)
        assert await ledgers(scene) == [doubtful]

    play(story)


def test_unfenceable_orphan_is_deleted_by_a_later_run() -> None:
    async def story(scene: Scene) -> None:
        await make(scene, await scene.stored())
        await asyncio.sleep(OLD_S)
        for bookie in scene.bookies.values():
            bookie.scripted.node.kill()
        assert await repair(scene) == OrphanReport(ledgers=1, left=1)
        for bookie in scene.bookies.values():
            bookie.scripted.node.start(bookie.scripted.serve)
        assert await repair(scene) == OrphanReport(ledgers=1, deleted=1)

    play(story)


def test_incomplete_or_invalid_custom_metadata_belongs_to_no_log() -> None:
    custom = custom_metadata(LOG, LogUid(b"0123456789abcdef"), 7)
    belonging = belonging_of(custom)
    assert belonging is not None
    assert (belonging.name, belonging.made_for) == (LOG, 7)
    wrong = (b"", b"\xff", b"ZZ", b"-", b"a/b/c")
    for key in custom:
        assert belonging_of({name: value for name, value in custom.items() if name != key}) is None
        for value in wrong:
            assert belonging_of({**custom, key: value}) is None, (key, value)

"""Truncation and deletion on real ledgers, also continued after the server that began them died."""

from rollbook.logservice.core.ledger_list import ListedLogState, LogEvent
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_deletion import delete_log, free_log
from rollbook.logservice.log_metadata import StoredLog
from rollbook.logservice.messages import CommitCursor
from rollbook.logservice.orphan_ledgers import YOUNG_MS, OrphanRepair
from rollbook.logservice.truncation import delete_discarded, truncate
from rollbook.proto.errors import (
    Guarded,
    InvalidRequest,
    LogExists,
    MetadataConflict,
    NoSuchLog,
    OwnerChanging,
)
from rollbook.proto.ids import LedgerId
from tests.unit.logservice.lists import closed
from tests.unit.logservice.owner_scene import LOG, Scene, play, refused

OTHER = LogName(LOG.namespace, "other")
NEVER_OPENED = LogName(LOG.namespace, "never")
EVENT = LogEvent("log_truncated", 1, reason="test")


async def three_segments(scene: Scene) -> StoredLog:
    """Segments closed at 2, 4 and 6; the log has no owner."""
    owner = await (await scene.server("s1")).open()
    for number in range(3):
        await owner.append(b"%d" % (2 * number), b"%d" % (2 * number + 1))
        if number < 2:
            await owner.run(owner.owner.roll("test"))
    await owner.close()
    return await scene.stored()


async def ledgers_of(scene: Scene) -> list[LedgerId]:
    return [ledger_id async for ledger_id in scene.ledgers.list()]


def test_ledgers_below_the_head_are_deleted_and_forgotten() -> None:
    """LL3, LL4."""

    async def story(scene: Scene) -> None:
        stored = await three_segments(scene)
        before = [segment.ledger_id for segment in stored.list.segments]
        stored, answer = await truncate(
            scene.nodes, stored, Offset(5), confirmed=Offset(6), is_begun=False, event=EVENT
        )
        assert (answer.old_head, answer.new_head, answer.records) == (0, 5, 5)
        assert answer.segments == (0, 1)
        assert 0 < answer.kept_bytes < answer.freed_bytes
        assert stored.list.discarded == tuple(before[:2])
        assert stored.list.events[-1] == EVENT
        assert await ledgers_of(scene) == before  # As if the server that truncated died here.
        stored = await delete_discarded(scene.ledgers, scene.nodes, await scene.stored())
        assert await ledgers_of(scene) == before[2:]  # Another server continued.
        assert stored == await scene.stored()
        assert stored.list.discarded == ()
        assert await scene.values() == [b"4", b"5"]

    play(story)


def test_truncation_plan_names_guards_and_changes_nothing() -> None:
    """LL6."""

    async def story(scene: Scene) -> None:
        stored = await three_segments(scene)
        await scene.nodes.commit_cursor(
            CommitCursor(LOG, CursorName("snapshot"), Offset(3), is_protected=True)
        )
        same, plan = await truncate(
            scene.nodes, stored, Offset(5), confirmed=Offset(6), is_begun=False, dry_run=True
        )
        assert (same, plan.new_head, plan.guards) == (stored, 5, ("snapshot",))
        assert await scene.stored() == stored
        await refused(
            truncate(scene.nodes, stored, Offset(5), confirmed=Offset(6), is_begun=False), Guarded
        )
        await refused(
            truncate(scene.nodes, stored, Offset(7), confirmed=Offset(6), is_begun=False),
            InvalidRequest,
        )
        await refused(
            truncate(
                scene.nodes,
                StoredLog(LOG, stored.list, stored.version - 1),
                Offset(3),
                confirmed=Offset(6),
                is_begun=False,
            ),
            MetadataConflict,
        )
        stored, answer = await truncate(
            scene.nodes, stored, Offset(3), confirmed=Offset(6), is_begun=False
        )
        assert answer.segments == (0,)
        again = await truncate(scene.nodes, stored, Offset(2), confirmed=Offset(6), is_begun=False)
        assert again[0] is stored  # The head never goes back.

    play(story)


def test_foreign_ledger_is_unlisted_and_not_deleted() -> None:
    """Metadata restored by hand may name a ledger that belongs to another application by now."""

    async def story(scene: Scene) -> None:
        writer = await scene.ledgers.create(custom={"application": b"another"})
        await writer.close()
        stored = await scene.stored()
        listed = stored.list.with_successor(writer.ledger_id, "test", 0)
        listed = closed(listed, 0, 2).with_successor(LedgerId(10**6), "test", 0)
        stored = await scene.nodes.replace(stored, closed(listed, 1, 3), made_for=stored.version)
        stored, _ = await truncate(
            scene.nodes, stored, Offset(2), confirmed=Offset(3), is_begun=False
        )
        stored = await delete_discarded(scene.ledgers, scene.nodes, stored)
        assert stored.list.discarded == ()
        assert await ledgers_of(scene) == [writer.ledger_id]

    play(story)


def test_unfenceable_ledger_is_deleted_later() -> None:
    """LL3."""

    async def story(scene: Scene) -> None:
        owner = await (await scene.server("s1")).open()
        await owner.append(b"0")
        stored = await delete_log(scene.nodes, LOG, 0, EVENT)
        for bookie in scene.bookies.values():
            bookie.scripted.node.kill()
        condemned = stored.list.with_ledgers_condemned()
        stored = await scene.nodes.replace(stored, condemned)
        left = await delete_discarded(scene.ledgers, scene.nodes, stored)
        assert left.list.discarded == condemned.discarded
        for bookie in scene.bookies.values():
            bookie.scripted.node.start(bookie.scripted.serve)
        left = await delete_discarded(scene.ledgers, scene.nodes, left)
        assert left.list.discarded == ()
        assert await ledgers_of(scene) == []
        owner.owner.lose("test")

    play(story)


def test_a_deleted_log_keeps_its_ledgers_for_the_grace() -> None:
    async def story(scene: Scene) -> None:
        before = await three_segments(scene)
        await refused(delete_log(scene.nodes, LOG, 1000, EVENT, etag="another"), MetadataConflict)
        stored = await delete_log(scene.nodes, LOG, 1000, EVENT)
        assert stored.list.state is ListedLogState.DELETED
        assert await delete_log(scene.nodes, LOG, 9999, EVENT) == stored
        assert not await free_log(scene.ledgers, scene.nodes, stored, now_us=999)
        assert len(await ledgers_of(scene)) == 3
        assert await free_log(scene.ledgers, scene.nodes, stored, now_us=1000)
        assert await ledgers_of(scene) == []
        await refused(scene.nodes.read(LOG), NoSuchLog)
        anew, was_made = await scene.nodes.ensure(LOG, LogConfig(description="another"))
        assert was_made
        assert anew.list.uid != before.list.uid

    play(story)


def test_deleted_log_keeps_its_ledgers_when_its_name_is_reused() -> None:
    """LL10: its ledgers are no orphans during the grace, and are deleted after it."""

    async def orphans(scene: Scene) -> int:
        late_ms = scene.ledgers._clock.wall_us() // 1000 + 2 * YOUNG_MS
        return (await OrphanRepair(scene.ledgers, scene.nodes, late_ms).run()).deleted

    async def story(scene: Scene) -> None:
        before = await three_segments(scene)
        await delete_log(scene.nodes, LOG, 1000, EVENT)
        anew, was_made = await scene.nodes.ensure(LOG, LogConfig(description="another"))
        assert was_made
        assert (await scene.nodes.read(LOG)).list.uid == anew.list.uid != before.list.uid
        assert await orphans(scene) == 0
        (kept,) = await scene.nodes.all_displaced()
        assert (kept.name, kept.list.uid) == (LOG, before.list.uid)
        assert kept.list.segments == before.list.segments
        await refused(scene.nodes.undelete(LOG, "", None, EVENT), LogExists)
        back = await scene.nodes.undelete(LOG, "", OTHER, EVENT)
        assert (back.name, back.list.state) == (OTHER, ListedLogState.OPEN)
        assert back.list.segments == before.list.segments
        assert await scene.nodes.all_displaced() == []
        assert await orphans(scene) == 0  # The ledgers' metadata still has the old name.
        assert len(await ledgers_of(scene)) == 3
        gone = await delete_log(scene.nodes, OTHER, 1000, EVENT)
        assert await free_log(scene.ledgers, scene.nodes, gone, now_us=1000)
        assert await ledgers_of(scene) == []
        assert await scene.nodes.displaced() == []
        for _ in range(2):  # Two logs displaced from the same name.
            await delete_log(scene.nodes, LOG, 1000, EVENT)
            await scene.nodes.ensure(LOG, None)
        assert len(await scene.nodes.all_displaced()) == 2
        for each in await scene.nodes.all_displaced():
            assert await free_log(scene.ledgers, scene.nodes, each, now_us=1000)
        assert await scene.nodes.displaced() == []

    play(story)


def test_log_with_condemned_ledgers_cannot_be_undeleted() -> None:
    """LL10: also between the steps of freeing it."""

    async def story(scene: Scene) -> None:
        await three_segments(scene)
        stored = await delete_log(scene.nodes, LOG, 1000, EVENT)
        stored = await scene.nodes.replace(stored, stored.list.with_ledgers_condemned())
        await refused(scene.nodes.undelete(LOG, "", None, EVENT), NoSuchLog)
        await delete_discarded(scene.ledgers, scene.nodes, stored)
        await refused(scene.nodes.undelete(LOG, "", None, EVENT), NoSuchLog)
        back = await scene.nodes.undelete(NEVER_OPENED, "", None, EVENT)
        assert back.list.state is ListedLogState.OPEN

    async def with_another(scene: Scene) -> None:
        await scene.nodes.create(NEVER_OPENED, LogConfig())
        await delete_log(scene.nodes, NEVER_OPENED, 1000, EVENT)
        await story(scene)

    play(with_another)


def test_a_marked_log_is_not_deleted() -> None:
    """LL6."""

    async def story(scene: Scene) -> None:
        mark = CommitCursor(LOG, CursorName("snapshot"), Offset(0), is_protected=True)
        await scene.nodes.commit_cursor(mark)
        refusal = await refused(delete_log(scene.nodes, LOG, 0, EVENT), Guarded)
        assert refusal.ids == {"log": str(LOG), "marks": ("snapshot",)}, (
            "the refusal names no offset"
        )
        assert "cursors" in refusal.next_step
        assert (await scene.stored()).list.state is ListedLogState.OPEN

    play(story)


def test_log_opened_during_its_deletion_is_not_deleted_under_its_owner() -> None:
    """Otherwise the owner would ack records that nobody can read."""

    async def story(scene: Scene) -> None:
        before = (await scene.stored()).list.owner_epoch
        log = await (await scene.server("s1")).open()
        await refused(delete_log(scene.nodes, LOG, 0, EVENT, owned_by=before), OwnerChanging)
        await log.append(b"0")
        await delete_log(scene.nodes, LOG, 0, EVENT, owned_by=log.owner.owner_epoch)
        log.owner.lose("test")

    play(story)

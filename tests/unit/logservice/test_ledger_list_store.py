"""An owner's list changes: races with other writers, and changes that the list rejects."""

from dataclasses import replace
from itertools import pairwise

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.ledger_list_store import LedgerListStore
from rollbook.logservice.log_config import WriterMode
from rollbook.logservice.log_metadata import LogMetadataStore, StoredLog
from rollbook.proto.errors import MetadataConflict, WriterRequired
from tests.unit.logservice.owner_scene import LOG, Scene, play, refused


def test_change_that_the_list_rejects_is_given_up() -> None:
    """The retries must pause, and end."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        list_store, asked_at = log.owner._list_store, list[float]()

        def forbid(listed: LedgerList) -> LedgerList:
            asked_at.append(scene.world.now)
            raise MetadataConflict("the segment was closed at another offset")

        await refused(log.run(list_store.change(forbid)), MetadataConflict)
        assert 5 < len(asked_at) < 50
        assert all(b > a for a, b in pairwise(asked_at))
        await log.close()

    play(story)


def test_change_that_loses_races_is_made_in_the_end() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        list_store: LedgerListStore = log.owner._list_store
        nodes: LogMetadataStore = log.server.owner_context.nodes
        races = 3

        async def change(_: StoredLog) -> tuple[StoredLog, int]:
            nonlocal races
            if races:  # Somebody else bumps the list first.
                races -= 1
                await nodes.bump(await nodes.read(LOG))
            return await nodes.bump(list_store.stored), 7

        assert await log.run(list_store.attempt(change, until_known=True)) == 7
        assert races == 0
        await log.close()

    play(story)


def test_owner_applies_a_configuration_found_in_a_list_conflict() -> None:
    """SV7: the server that changed it may not have notified the owner yet."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()

        def exclusive(listed: LedgerList) -> LedgerList:
            config = replace(listed.config, writer_mode=WriterMode.EXCLUSIVE, batch_records_max=3)
            return listed.with_config(config)

        await scene.nodes.change(LOG, exclusive)
        await log.append(b"as before")
        await log.run(log.owner.roll())  # The list change of the roll conflicts and is retried.
        assert log.owner.limits.batch_records_max == 3
        await refused(log.append(b"without an epoch"), WriterRequired)
        await log.close()

    play(story)

"""An owner's changes of its list, when others are quicker, and when the list itself forbids them."""

from itertools import pairwise

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.list_keeper import ListKeeper
from rollbook.logservice.log_nodes import LogNodes, StoredLog
from rollbook.proto.errors import MetadataConflict
from tests.unit.logservice.owner_scene import LOG, Scene, play, refused


def test_what_the_list_forbids_is_not_asked_for_for_ever() -> None:
    """It was evaluated again and again, without a pause, by an owner that nobody could reach meanwhile."""

    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        keeper, asked_at = log.owner._keeper, list[float]()

        def forbid(listed: LedgerList) -> LedgerList:
            asked_at.append(scene.world.now)
            raise MetadataConflict("the segment was closed at another offset")

        await refused(log.run(keeper.change(forbid)), MetadataConflict)
        assert 5 < len(asked_at) < 50
        assert all(b > a for a, b in pairwise(asked_at))
        await log.close()

    play(story)


def test_whoever_is_slower_comes_to_his_turn() -> None:
    async def story(scene: Scene) -> None:
        log = await (await scene.server("s1")).open()
        keeper: ListKeeper = log.owner._keeper
        nodes: LogNodes = log.server.ground.nodes
        races = 3

        async def change(_: StoredLog) -> tuple[StoredLog, int]:
            nonlocal races
            if races:  # Somebody else bumps the list first.
                races -= 1
                await nodes.bump(await nodes.read(LOG))
            return await nodes.bump(keeper.stored), 7

        assert await log.run(keeper.attempt(change, until_known=True)) == 7
        assert races == 0
        await log.close()

    play(story)

"""Leader election, compatible with BookKeeper's auditors."""

import asyncio

import pytest

from rollbook.proto.cluster import election as module
from rollbook.proto.cluster.election import Election, Vote
from rollbook.proto.errors import NoSuchNode
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import CreateMode, MetadataStore
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/ledgers"
FOLDER = f"{ROOT}/underreplication/auditorelection"
A, B = BookieId("a:3181"), BookieId("b:3181")
DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
async def root(rival: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
    await rival.create(ROOT)


def election(store: MetadataStore, candidate: BookieId) -> Election:
    return Election(store, FOLDER, candidate, above=ROOT)


async def votes(store: MetadataStore) -> list[str]:
    return await store.children(FOLDER)


async def cast_by_hand(store: MetadataStore, mode: CreateMode) -> str:
    return await store.create(f"{FOLDER}/V_", b'bookieId: "java:3181"\n', mode)


async def some_turns() -> None:
    """Many more turns of the loop than a vote in memory and taking the lead need."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_lowest_vote_leads(store: FaultyStore, rival: MetadataStore) -> None:
    """AR13: one of all candidates is the auditor."""
    ours, theirs = election(store, A), election(rival, B)
    vote = await ours.lead()
    await theirs.stand()
    assert vote.path == f"{FOLDER}/V_0000000000"
    assert await votes(rival) == ["V_0000000000", "V_0000000001"]
    assert await theirs.leader() == A
    node = await rival.get(FOLDER)
    assert node is not None
    assert node.value == b'bookieId: "a:3181"\n'


async def test_next_candidate_leads_when_leader_is_gone(
    store: FaultyStore, service: MemoryService, rival: MetadataStore
) -> None:
    """AR14: when the auditor fails, the next candidate is elected; each candidate watches the one
    before it.
    """
    first = await service.connect()
    await election(first, BookieId("first:1")).lead()
    second, third = election(store, A), election(rival, B)
    await second.stand()
    await third.stand()
    async with asyncio.timeout(DEADLINE_S):
        leading = asyncio.get_running_loop().create_task(second.lead())
        waiting = asyncio.get_running_loop().create_task(third.lead())
        await some_turns()
        assert not leading.done()
        await first.close()  # Its session ends, as after a kill.
        await leading
        assert await third.leader() == A
        await some_turns()
        assert not waiting.done()
        await second.withdraw()
        await waiting
    assert await third.leader() == B


@pytest.mark.parametrize("row", [[Fate.ANSWER_LOST], [Fate.REQUEST_LOST, Fate.ANSWER_LOST]])
async def test_vote_with_lost_reply_is_found_by_its_session(
    store: FaultyStore, rival: MetadataStore, row: list[Fate]
) -> None:
    """EL1."""
    await election(rival, B).stand()
    store.fates.extend(row)
    vote = await election(store, A).stand()
    assert vote == Vote(f"{FOLDER}/V_0000000001", store.session)
    assert await election(store, A).stand() == vote, "a restarted candidate keeps its vote"
    assert len(await votes(rival)) == 2


async def test_session_with_two_votes_keeps_one(store: FaultyStore, rival: MetadataStore) -> None:
    """EL1."""
    await election(rival, B).stand()
    vote = await election(store, A).stand()
    await cast_by_hand(store, CreateMode.EPHEMERAL_SEQUENTIAL)
    assert await election(store, A).stand() == vote
    assert len(await votes(rival)) == 2


@pytest.mark.parametrize("kind", ["retry", "nobody"])
async def test_orphan_vote_does_not_block_election(
    store: FaultyStore, rival: MetadataStore, kind: str
) -> None:
    """EL3: a retry by Java leaves a vote that its process does not know, and the process waits for
    that vote.
    """
    await election(store, A).stand()
    await store.delete(f"{FOLDER}/V_0000000000")
    if kind == "nobody":
        await cast_by_hand(rival, CreateMode.PERSISTENT_SEQUENTIAL)
        assert (await election(store, A).lead()).path == f"{FOLDER}/V_0000000002"
        return
    for _ in range(2):
        await cast_by_hand(rival, CreateMode.EPHEMERAL_SEQUENTIAL)
    leading = asyncio.get_running_loop().create_task(election(store, A).lead())
    await until_gone(rival, "V_0000000001")
    assert not leading.done()
    assert await votes(rival) == ["V_0000000002", "V_0000000003"]
    await rival.delete(f"{FOLDER}/V_0000000002")
    async with asyncio.timeout(DEADLINE_S):
        assert (await leading).path == f"{FOLDER}/V_0000000003"


async def until_gone(store: MetadataStore, name: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while name in await votes(store):
            await asyncio.sleep(0.001)


async def test_deposed_leader_cannot_commit_transactions(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """EL2."""
    vote = await election(store, A).lead()
    await rival.create("/state")
    await rival.transaction([vote.check])
    await rival.delete(vote.path)  # The end of its session would do the same.
    await election(rival, B).lead()
    with pytest.raises(NoSuchNode):
        await store.transaction([vote.check])


async def test_leading_restarts_after_vote_is_deleted(
    store: FaultyStore, rival: MetadataStore
) -> None:
    led: asyncio.Queue[Vote] = asyncio.Queue()

    async def lead(vote: Vote) -> None:
        led.put_nowait(vote)
        await asyncio.Event().wait()

    serving = asyncio.get_running_loop().create_task(election(store, A).serve(lead))
    async with asyncio.timeout(DEADLINE_S):
        first = await led.get()
        await rival.delete(first.path)
        second = await led.get()
        assert second.path != first.path
        store.read_fates.extend([Fate.NOT_SENT] * 3)
        await rival.delete(second.path)
        await led.get()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert await votes(rival) == [], "the candidate has withdrawn"


async def test_leader_that_raises_withdraws_its_vote(
    store: FaultyStore, rival: MetadataStore
) -> None:
    async def lead(_: Vote) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await election(store, A).serve(lead)
    assert await votes(rival) == []


async def test_election_without_a_valid_vote_has_no_leader(
    store: FaultyStore, rival: MetadataStore
) -> None:
    assert await election(store, A).leader() is None
    await election(store, A).stand()
    await rival.set(f"{FOLDER}/V_0000000000", b"\xff")
    assert await election(rival, B).leader() is None

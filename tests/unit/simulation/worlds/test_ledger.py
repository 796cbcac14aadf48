"""The ledger client in the simulator: runs without faults, random faults, drills and planted bugs."""

import pytest

from rollbook.bookie.store_opening import make_store
from tests.simulation.checkers.ledger.facts import fences_on_disk
from tests.simulation.kernel.world import Node, World
from tests.simulation.mutants import search
from tests.simulation.run import simulate
from tests.simulation.schedule import Case, Kind, Step
from tests.simulation.worlds.ledger import words
from tests.simulation.worlds.ledger.bookies import STORAGE, sound_records
from tests.simulation.worlds.ledger.drills import DRILLS, QUORUMS
from tests.simulation.worlds.ledger.flaws import LEDGER_MUTANTS
from tests.simulation.worlds.ledger.plan import PEACE_US, draw_case
from tests.simulation.worlds.ledger.scene import LedgerScene
from tests.simulation.worlds.toy.oracle import EVERY_RULE


def step(ms: int, actor: str, what: str) -> Step:
    return Step(PEACE_US + 1000 * ms, actor, what)


@pytest.mark.parametrize("version", [2, 3])
def test_run_without_faults_acks_all_appends_and_closes_ledgers(version: int) -> None:
    steps = (
        Step(0, words.CLUSTER, f"4 bookies v{version}"),
        step(0, words.WRITER, "create 4 3 2 CRC32C"),
        step(0, words.FOLLOWER, words.FOLLOW),
        step(20, words.WRITER, "append 12 100"),
        step(40, words.WRITER, "append 5 1000"),
        step(60, words.READER, words.READ),
        step(80, words.WRITER, words.CLOSE),
        step(90, words.WRITER, "create 3 3 3 HMAC"),
        step(100, words.WRITER, "append 3 30"),
        step(120, words.RECOVERERS[0], words.RECOVER),
        step(150, words.WRITER, "append 1 30"),
    )
    report = LedgerScene().run(Case("ledger", 1, steps, ()), tell=True)
    assert report.broke is None, report.detail
    outcomes = [append.outcome.value for append in report.history.appends]
    assert outcomes[:20] == ["applied"] * 20
    assert len([line for line in report.story if "closed at" in line and "version" in line]) == 2
    assert {call.step for call in report.history.calls} >= {"create", "close", "recover", "read"}


def test_seeds_pass_and_at_least_4_of_12_are_not_weak() -> None:
    said: list[str] = []
    tally = simulate(range(12), "ledger", lambda _done, _total: None, said.append)
    assert tally.failed == 0
    assert tally.passed >= 4
    assert any("while a fault was in force" in line for line in said)


def test_fences_written_by_a_format_are_found_on_its_disk() -> None:
    world, bodies = World(1), list[bytes]()

    async def format_it(node: Node) -> None:
        node.disk.on_synced = lambda *synced: bodies.extend(sound_records(*synced))
        await make_store(node.disk, STORAGE, node.randomness, doubted=[7])

    async def scenario(world: World) -> None:
        await world.node("b1").start(format_it).result

    world.run(scenario(world))
    fenced = [any(f in body for body in bodies for f in fences_on_disk(i, b"")) for i in (7, 8)]
    assert fenced == [True, False]


def test_all_steps_and_faults_are_drawn() -> None:
    cases = [draw_case(seed) for seed in range(300)]
    verbs = {each.what.split()[0] for case in cases for each in case.steps}
    assert verbs >= {words.CREATE, words.APPEND, words.FLUSH, words.FORCE, words.CLOSE}
    assert verbs >= {words.RECOVER, words.DELETE, words.FOLLOW, words.READ, words.READ_ONLY}
    kinds = {fault.kind for case in cases for fault in case.faults}
    elsewhere = {Kind.STALE_SECTOR, Kind.CLOCK_JUMP, Kind.ROLLBACK, Kind.PARTIAL_LISTING}
    assert kinds >= set(Kind) - elsewhere
    assert {each.actor for case in cases for each in case.steps} >= set(words.CLIENTS)


@pytest.mark.parametrize("drill", DRILLS)
def test_client_passes_every_drill(drill: str) -> None:
    scene = LedgerScene(drill=drill)
    for seed in range(3):
        report = scene.run(scene.case(seed))
        assert report.broke is None, (seed, report.detail)


def test_drills_of_planted_bugs_exist() -> None:
    assert {mutant.drill for mutant in LEDGER_MUTANTS if mutant.drill} <= set(DRILLS)
    assert set(QUORUMS) <= set(DRILLS)


@pytest.mark.parametrize(
    "name",
    ["ledger-one-ack-less", "ledger-moving-lac", "ledger-reads-do-not-fence", "ledger-wide-gaps"],
)
def test_planted_bugs_are_found(name: str) -> None:
    found = search((name, 0, EVERY_RULE))
    assert found.seed is not None, name

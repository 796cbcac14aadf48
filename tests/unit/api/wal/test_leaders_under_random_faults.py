"""Leaders depose one another under load, and the clients' history stays linearizable.

With a planted bug it does not, which shows that the checker can fail.
"""

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from examples.kv.store import Store
from rollbook.api.wal.aio import StateMachine, Term
from rollbook.api.wal.exclusive_writer import is_passing
from rollbook.proto.errors import Outcome, RollbookError
from tests.chaos.kv import flawed_node
from tests.chaos.kv.checker import violations
from tests.chaos.kv.history import Op
from tests.unit.api.client.conftest import Site
from tests.unit.api.wal.conftest import the_log

REPLICAS = ("a", "b", "c")
CLIENTS = 4
OPS = 60  # The number of operations of each client.
KEYS = 3
ROUNDS_MAX = 40  # A planted bug must show within these; the rarest shows in 2 of 5 rounds.


class World:
    """Replicas of the key-value store on one log, all in this process."""

    def __init__(self, site: Site, chance: random.Random, *, trusts: str = "") -> None:
        self.history: list[Op] = []
        self._site = site
        self._chance = chance
        self._trusts = trusts
        self.stores = {name: Store() for name in REPLICAS}
        self.machines = {
            name: StateMachine(
                site.client("a"),
                "kv",
                self.stores[name],
                holder=name,
                snapshot_every=40,
            )
            for name in REPLICAS
        }
        self._terms: dict[str, Term] = {}
        self._turns = {name: asyncio.Event() for name in REPLICAS}
        self._values = 0
        self._is_over = False

    async def live(self) -> None:
        async with AsyncExitStack() as stack:
            for machine in self.machines.values():
                await stack.enter_async_context(machine)
            campaigns = [asyncio.create_task(self._campaign(name)) for name in REPLICAS]
            breaking = asyncio.create_task(self._break_lines())
            self._turns["a"].set()
            await asyncio.gather(*(self._work(f"c{number}") for number in range(CLIENTS)))
            self._is_over = True
            await breaking
            for task in campaigns:
                task.cancel()
            for task in campaigns:
                with suppress(asyncio.CancelledError):  # Any other exception fails the test.
                    await task
            for name in REPLICAS:
                for key in range(KEYS):
                    await self._do(name, Op("auditor", "get", f"k{key}", 0))

    async def _campaign(self, name: str) -> None:
        while True:
            await self._turns[name].wait()
            self._turns[name].clear()
            try:
                async with self.machines[name].lead("steal") as term:
                    self._terms[name] = term
                    await term.over()
            except RollbookError as error:  # Too many connections broke.
                if not is_passing(error):
                    raise
                await asyncio.sleep(0.01)
                self._turns[name].set()

    async def _break_lines(self) -> None:
        """Restarts the server repeatedly, so that responses in flight are lost."""
        address = self._site.doors["a"].address
        while not self._is_over:
            await self._until_done(len(self.history) + self._chance.randrange(10, 40))
            await self._site.stop("a")
            await self._site.start("a", address)

    async def _until_done(self, count: int) -> None:
        """Waits for an amount of work, so that slow machines test as much as fast ones."""
        while len(self.history) < count and not self._is_over:
            await asyncio.sleep(0.01)

    async def _work(self, client: str) -> None:
        for _ in range(OPS):
            name = self._chance.choice(REPLICAS)
            if self._chance.random() < 0.05:
                self._turns[name].set()
            await self._do(name, self._pick(client))
            await asyncio.sleep(self._chance.uniform(0, 0.002))

    def _pick(self, client: str) -> Op:
        do = self._chance.choice(("get", "get", "put", "put", "delete"))
        self._values += 1
        value = f"v{self._values}" if do == "put" else None
        return Op(client, do, f"k{self._chance.randrange(KEYS)}", 0, value=value)

    async def _do(self, name: str, op: Op) -> None:
        op = replace(op, called_ns=time.monotonic_ns())
        try:
            found = await self._ask(name, op)
        except RollbookError as error:
            if error.outcome is not Outcome.NOT_APPLIED and op.do != "get":
                self.history.append(op)
        else:
            self.history.append(replace(op, returned_ns=time.monotonic_ns(), found=found))

    async def _ask(self, name: str, op: Op) -> str | None:
        term = self._terms.get(name)
        if op.do == "get":
            leads = term is not None and not term.is_over
            if self._trusts == "everybody" or (self._trusts == "leader" and leads):
                return self.stores[name].values.get(op.key)
            return await self.machines[name].read(lambda: self.stores[name].values.get(op.key))
        if term is None:
            raise RollbookErrorNotApplied
        command = {"do": op.do, "key": op.key, "value": op.value}
        _, found = await term.propose(json.dumps(command).encode())
        return found  # type: ignore[no-any-return]  # The store returns a string or None.


class RollbookErrorNotApplied(RollbookError):
    outcome = Outcome.NOT_APPLIED


def hasty(machines: dict[str, StateMachine]) -> None:
    """Plants a bug: standbys apply a command as soon as it is proposed."""
    propose, apply = Term.propose, StateMachine._apply
    done: dict[tuple[int, bytes], Any] = {}

    async def tell_first(self: Term, command: bytes) -> Any:
        self._check()
        for machine in machines.values():
            if machine is not self._machine:
                done[id(machine), command] = machine._state.apply(command)
        return await propose(self, command)

    def apply_later(self: StateMachine, command: bytes) -> Any:
        if (id(self), command) in done:
            self._replica.on_applied()
            return done.pop((id(self), command))
        return apply(self, command)

    Term.propose = tell_first  # type: ignore[method-assign]  # The bug.
    StateMachine._apply = apply_later  # type: ignore[method-assign]  # A stand-in.


@pytest.mark.parametrize("seed", range(3))
async def test_history_of_the_state_machine_is_linearizable(site: Site, seed: int) -> None:
    """WK1 to WK5"""
    world = World(site, random.Random(seed))
    await world.live()
    assert violations(world.history) == []
    known = [op for op in world.history if op.is_known and op.do != "get"]
    assert len(known) > OPS / 4
    assert the_log(site, "kv").writer_epoch > 3
    stores = [store.values for store in world.stores.values()]
    assert stores[0] == stores[1] == stores[2]


@pytest.mark.parametrize("bug", ["early", "eager", "hasty", "leader", "everybody"])
async def test_checker_finds_planted_bug(
    site: Site, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bugs, in order: results before they are confirmed; unconfirmed commands in the state of
    leaders or of standbys; reads without a barrier from leaders or from every replica."""
    monkeypatch.setattr(Term, "propose", Term.propose)  # So that monkeypatch restores it.
    monkeypatch.setattr(StateMachine, "_apply", StateMachine._apply)
    if bug in flawed_node.FLAWS:
        flawed_node.FLAWS[bug]()
    machines: dict[str, StateMachine] = {}
    if bug == "hasty":
        hasty(machines)
    for seed in range(ROUNDS_MAX):
        site.cluster.logs.clear()
        world = World(site, random.Random(seed), trusts=bug)
        machines.clear()
        machines.update(world.machines)
        await world.live()
        if violations(world.history):
            return
    pytest.fail(f"{ROUNDS_MAX} rounds did not show it")

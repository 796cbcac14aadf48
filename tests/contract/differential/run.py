"""Plays plan after plan on all stores, and explains those on which the stores differ."""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from tests.contract.differential.plan import Plan, Step, Transact, make_plan
from tests.contract.differential.play import play
from tests.contract.differential.stages import Stage, embedded_stage, memory_stage, zookeeper_stage
from tests.support import zookeeper
from tests.support.zookeeper import HOW_TO_ENABLE, NoZooKeeper, ZooKeeperServer
from tests.tally import Tally, missing_piece

AT_A_TIME: Final = 6  # Concurrent plans: they mostly wait for faults.
SHRINKING_PLAYS_MAX: Final = 300
FAILURES_MAX: Final = 3  # After this many failures the run ends.

Say = Callable[[str], None]


def run(sequences: int, seed: int, say: Say) -> Tally:
    """Plays the plans of a number of seeds, from `seed` on."""
    tally = Tally("histories")
    with contextlib.ExitStack() as stack:
        server = None
        try:
            server = stack.enter_context(zookeeper.running())
        except NoZooKeeper as error:
            tally.skipped.append(missing_piece("zk", str(error), HOW_TO_ENABLE))
        with silence():
            asyncio.run(_run(range(seed, seed + sequences), server, tally, say))
    return tally


async def _run(seeds: range, server: ZooKeeperServer | None, tally: Tally, say: Say) -> None:
    async with open_stages(server) as stages:
        say(f"the same histories on {', '.join(stage.name for stage in stages)}")
        waiting = iter(seeds)

        async def work() -> None:
            for seed in waiting:
                if tally.failed >= FAILURES_MAX:
                    return
                plan = make_plan(seed)
                if await difference(plan, stages) is None:
                    tally.passed += 1
                else:
                    tally.failed += 1
                    say(await explain(seed, plan, stages))
                done = tally.passed + tally.failed
                if done % max(1, len(seeds) // 10) == 0:
                    say(f"histories: {done:,} of {len(seeds):,}")

        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))


@contextlib.asynccontextmanager
async def open_stages(server: ZooKeeperServer | None) -> AsyncIterator[list[Stage]]:
    async with contextlib.AsyncExitStack() as stack:
        stages: list[Stage] = [
            await stack.enter_async_context(memory_stage()),
            await stack.enter_async_context(embedded_stage()),
        ]
        if server is not None:
            stages.append(stack.enter_context(zookeeper_stage(server)))
        yield stages


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Mutes log messages: every store would report thousands of broken connections."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


# --- Comparing ----------------------------------------------------------------------------------

_roots = (f"/history-{os.urandom(4).hex()}-{number}" for number in itertools.count())


async def difference(plan: Plan, stages: Sequence[Stage]) -> str | None:
    """Describes the first difference between the stores; None if they agree."""
    root = next(_roots)
    transcripts = await asyncio.gather(
        *(play(plan, stage, root) for stage in stages), return_exceptions=True
    )
    columns: list[list[tuple[str, Any]]] = []
    for transcript in transcripts:
        if isinstance(transcript, BaseException):
            return "\n".join(
                f"  {stage.name}: {_first_line(one)}"
                for stage, one in zip(stages, transcripts, strict=True)
            )
        columns.append(
            [
                *((f"after step {i}", told) for i, told in enumerate(transcript.outcomes, start=1)),
                ("in the end", transcript.tree),
                ("when all sessions are closed", transcript.tree_afterwards),
            ]
        )
    for row in zip(*columns, strict=True):
        if any(told != row[0] for told in row):
            shown = (
                f"    {stage.name}: {told}" for stage, (_, told) in zip(stages, row, strict=True)
            )
            return "\n".join((f"  {row[0][0]}:", *shown))
    return None


def _first_line(played: object) -> str:
    if not isinstance(played, BaseException):
        return "played to the end"
    return f"{type(played).__name__}: {str(played).partition(chr(10))[0]}"


async def explain(seed: int, plan: Plan, stages: Sequence[Stage]) -> str:
    shrunk = await shrink(plan, stages)
    found = await difference(shrunk, stages) or "  not any more: it depends on timing"
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(shrunk, start=1))
    return (
        f"seed {seed} tells the stores apart; {len(shrunk)} of {len(plan)} steps are enough:\n"
        f"{steps}\n{found}"
    )


async def shrink(plan: Plan, stages: Sequence[Stage]) -> Plan:
    """Drops steps, faults and operations as long as the stores still differ."""
    plays_left = SHRINKING_PLAYS_MAX
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(plan):
            if plays_left == 0:
                return plan
            plays_left -= 1
            if await difference(smaller, stages) is not None:
                plan, progress = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, those with the largest cuts first."""
    size = len(plan) // 2
    while size:
        for start in range(0, len(plan), size):
            yield plan[:start] + plan[start + size :]
        size //= 2
    for place, step in enumerate(plan):
        for simpler in _simpler(step):
            yield (*plan[:place], simpler, *plan[place + 1 :])


def _simpler(step: Step) -> Iterator[Step]:
    if step.fault is not None:
        yield replace(step, fault=None)
    if isinstance(step.call, Transact):
        ops = step.call.ops
        for place in range(len(ops)):
            yield replace(step, call=Transact(ops[:place] + ops[place + 1 :]))

"""A node with a planted flaw, which a run has to find: `FLAW` and then a node's arguments.

early      answers a change before it is confirmed (WK3)
eager      has a change in its state before it is confirmed, and keeps it when it is fenced (WK1)
trusting   as leader, answers reads from its state, without checking that it still leads
stale      answers reads from its state, also as a standby
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from examples.kv import node
from rollbook.api.wal.machine import StateMachine
from rollbook.api.wal.term import Term


def early() -> None:
    propose = Term.propose

    async def answer(self: Term, command: bytes) -> Any:
        task = asyncio.create_task(propose(self, command))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = json.loads(command)
        values = self._machine._state.values  # type: ignore[attr-defined]  # The example's.
        before = values.get(found["key"])
        return (found["do"] != "cas" or before == found["expect"]), before

    Term.propose = answer  # type: ignore[method-assign]  # The flaw.


def eager() -> None:
    propose, apply = Term.propose, StateMachine._apply
    results: dict[bytes, Any] = {}  # Keyed by command: values are unique.

    async def apply_first(self: Term, command: bytes) -> Any:
        self._check()
        results[command] = self._machine._state.apply(command)
        return await propose(self, command)

    def apply_later(self: StateMachine, command: bytes) -> Any:
        if command in results:
            self._replica.on_applied()
            return results.pop(command)
        return apply(self, command)

    Term.propose = apply_first  # type: ignore[method-assign]  # The flaw.
    StateMachine._apply = apply_later  # type: ignore[method-assign]  # The flaw.


def trusting() -> None:
    get = node.Node.get

    def answer(self: node.Node, key: str) -> str | None:
        return self.store.values.get(key) if self.leads else get(self, key)

    node.Node.get = answer  # type: ignore[method-assign]  # The flaw.


def stale() -> None:
    def answer(self: node.Node, key: str) -> str | None:
        return self.store.values.get(key)

    node.Node.get = answer  # type: ignore[method-assign]  # The flaw.


FLAWS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (early, eager, trusting, stale)
}


if __name__ == "__main__":
    FLAWS[sys.argv.pop(1)]()
    node.main()

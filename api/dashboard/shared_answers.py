"""Answers that visitors share, so that fifty open pages cost the cluster no more than one page.

Callers with the same key share a fresh answer, and a request in progress. After a change by any
caller, earlier answers and requests are no longer shared, since they may lack the change. While the metadata
store is unavailable, callers get the last answer, with its age (DB3).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from rollbook.proto.errors import OutcomeUnknown, Unavailable
from rollbook.proto.tasks import stop_tasks

_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    facts: Any
    at_ns: int  # The time when the answer was requested.
    age_s: int = 0
    # Why the answer is old; None: the answer is fresh.
    problem: Unavailable | OutcomeUnknown | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    answer: asyncio.Task[Any]
    began_ns: int


class SharedAnswers:
    def __init__(self, now_ns: Callable[[], int], fresh_s: float, kept_max: int) -> None:
        """`fresh_s`: how long answers are shared. Larger: open pages cost less, but show older facts.

        `kept_max`: the maximum number of answers that are kept.
        """
        self._now_ns = now_ns
        self._fresh_ns = int(fresh_s * _S)
        self._kept_max = kept_max
        self._changed_ns = now_ns()  # The time of the last change.
        self._known: OrderedDict[Hashable, SharedAnswer] = OrderedDict()
        self._asking: dict[Hashable, _Question] = {}

    def on_act(self) -> None:
        """Records that something changed, so that earlier answers are no longer fresh."""
        self._changed_ns = self._now_ns()

    async def ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> SharedAnswer:
        """Returns the answer, or raises the error of `ask`. While the store is unavailable, returns an older answer
        if one is known.

        If the caller is cancelled, the request continues for other callers.
        """
        known = self._known.get(key)
        if known is not None and self._is_fresh(known):
            return known
        question = self._asking.get(key)
        if question is None or question.began_ns <= self._changed_ns:
            question = self._begin(key, ask)
        try:
            facts = await asyncio.shield(question.answer)
        except (Unavailable, OutcomeUnknown) as error:
            if known is None:
                raise
            age_s = (self._now_ns() - known.at_ns) // _S
            return SharedAnswer(known.facts, known.at_ns, age_s, error)
        return SharedAnswer(facts, question.began_ns)

    async def close(self) -> None:
        """Stops all requests. Call this when no caller is waiting for an answer."""
        asking = [each.answer for each in self._asking.values()]
        await stop_tasks(*asking)

    def _is_fresh(self, known: SharedAnswer) -> bool:
        is_young = self._now_ns() - known.at_ns < self._fresh_ns
        return is_young and known.at_ns > self._changed_ns

    def _begin(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> _Question:
        began_ns = self._now_ns()
        question = _Question(asyncio.create_task(_answered(ask)), began_ns)
        self._asking[key] = question

        def end(answer: asyncio.Task[Any]) -> None:
            if self._asking.get(key) is question:
                del self._asking[key]
            if not answer.cancelled() and answer.exception() is None:
                self._remember(key, SharedAnswer(answer.result(), began_ns))

        question.answer.add_done_callback(end)
        return question

    def _remember(self, key: Hashable, answer: SharedAnswer) -> None:
        known = self._known.get(key)
        if known is None or known.at_ns <= answer.at_ns:
            self._known[key] = answer
            self._known.move_to_end(key)
        while len(self._known) > self._kept_max:
            self._known.popitem(last=False)


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()

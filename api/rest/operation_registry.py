"""Operations: long requests over HTTP that run in the background, and can be queried."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from rollbook.api.rest.problems import problem_of, surprise
from rollbook.proto.errors import Missing, OutcomeUnknown, Overloaded, RollbookError
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

Facts = Mapping[str, Any]
"""Plain values, named like the fields of the model that shows them."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]")
_OPERATIONS_KEPT: Final = 100
_ACTS_AT_ONCE: Final = 8
# Looks have their own slots, so that callers with read rights cannot block acts (MG4).
_LOOKS_AT_ONCE: Final = 2


@dataclass(slots=True)
class Operation:
    id: str
    kind: str
    started_ms: int
    is_look: bool = False  # True: the operation changes nothing.
    ended_ms: int | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None
    error: RollbookError | None = None  # The error that the problem document was made of.

    def describe(self) -> dict[str, Any]:
        state = "failed" if self.problem else "running" if self.ended_ms is None else "done"
        return {
            **{name: getattr(self, name) for name in ("id", "kind", "started_ms", "ended_ms")},
            "state": state,
            "result": self.result,
            "problem": self.problem,
        }


class RunningOperations:
    """Each operation has an id by which it can be queried. The last hundred are remembered. Operations that
    only look are forgotten first, and no operation is forgotten while it runs.
    """

    def __init__(self) -> None:
        self._known: dict[str, Operation] = {}  # Oldest first.
        # Running operations by kind.
        self._running: dict[str, tuple[Operation, asyncio.Task[None]]] = {}
        self._number = 0

    def start(
        self, kind: str, work: Callable[[], Awaitable[Facts]], *, is_look: bool = False
    ) -> Operation:
        """Starts an operation, or returns the running one of this kind. Raises `Overloaded`."""
        if running := self._running.get(kind):
            return running[0]
        alike = sum(each.is_look == is_look for each, _ in self._running.values())
        if alike >= (_LOOKS_AT_ONCE if is_look else _ACTS_AT_ONCE):
            raise Overloaded("too many operations are running", next_step="wait for one to end")
        self._number += 1
        name = _UNSAFE.sub("_", kind)  # The name is part of a URL path.
        operation = Operation(f"{name}-{self._number}", kind, _now_ms(), is_look)
        self._known[operation.id] = operation
        if len(self._known) > _OPERATIONS_KEPT:
            self._forget_one()
        task = asyncio.create_task(self._run(operation, work))
        self._running[kind] = operation, task
        logger.info("operation_started", operation=operation.id)
        return operation

    def _forget_one(self) -> None:
        ended = [each for each in self._known.values() if each.ended_ms is not None]
        oldest = next((each for each in ended if each.is_look), ended[0])
        del self._known[oldest.id]

    async def await_result(
        self,
        kind: str,
        work: Callable[[], Awaitable[Facts]],
        patience_s: float,
        *,
        is_look: bool = False,
    ) -> Operation:
        """Starts or joins an operation and waits for its end, at most `patience_s`; it may still run afterwards.
        Raises the error with which it ended."""
        operation = self.start(kind, work, is_look=is_look)
        _, task = self._running[kind]
        await asyncio.wait([task], timeout=patience_s)
        if operation.error is not None:
            raise operation.error.copy()
        return operation

    async def _run(self, operation: Operation, work: Callable[[], Awaitable[Facts]]) -> None:
        try:
            operation.result = dict(await work())
        except asyncio.CancelledError:
            operation.problem = problem_of(
                OutcomeUnknown("the server was stopped during the operation")
            )
            raise
        except RollbookError as error:
            operation.error, operation.problem = error, problem_of(error)
        except Exception as error:
            logger.error("operation_failed", operation=operation.id, exc_info=error)
            operation.error = surprise("GET" if operation.is_look else "")
            operation.problem = problem_of(operation.error)
        finally:
            operation.ended_ms = _now_ms()
            del self._running[operation.kind]
        outcome = "failed" if operation.problem else "done"
        logger.info("operation_ended", operation=operation.id, outcome=outcome)

    def is_running(self, *kinds: str) -> bool:
        return any(kind in self._running for kind in kinds)

    def find(self, operation_id: str) -> Operation:
        if operation := self._known.get(operation_id):
            return operation
        raise Missing("there is no such operation", operation=operation_id)

    def known(self, operation_id: str) -> Operation | None:
        return self._known.get(operation_id)

    def newest_first(self) -> list[Operation]:
        return list(reversed(self._known.values()))

    async def close(self) -> None:
        """Stops all operations, and logs how each ended."""
        # A task cancelled before its first step never runs, so its operation would not end.
        await asyncio.sleep(0)
        for _, task in list(self._running.values()):
            await stop_tasks(task)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

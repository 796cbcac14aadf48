"""`Term`: one period of leadership of a state machine (the rules are in `core/term_rules.py`)."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.producer_batch import Submission
from rollbook.api.wal.core.term_rules import TermRules
from rollbook.api.wal.exclusive_writer import ExclusiveWriter
from rollbook.logservice.ids import WriterEpoch
from rollbook.proto.errors import ClientClosed, Outcome, RollbookError

if TYPE_CHECKING:
    from rollbook.api.wal.machine import StateMachine


@dataclass(eq=False, slots=True)
class _Waiter:
    command: bytes
    submission: Submission
    result: "asyncio.Future[Any]"

    def tell(self, result: Any) -> None:
        if not self.result.done():  # If it is done, the caller was cancelled.
            self.result.set_result(result)

    def fail(self, error: RollbookError) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def failure(self) -> RollbookError:
        """Returns the error of a settled command that was not applied here."""
        try:
            self.submission.result()
        except RollbookError as error:
            return error
        unheard = ClientClosed("the command was acked, but not applied here")
        unheard.outcome = Outcome.APPLIED
        return unheard


class Term:
    """One period of leadership, from entering the term until it ends. A term can be entered only once; to lead
    again, take a new term.
    """

    def __init__(self, machine: "StateMachine", writer: ExclusiveWriter) -> None:
        self._machine = machine
        self._writer = writer
        self._rules: TermRules[_Waiter]
        self._running: asyncio.Task[RollbookError]
        self._is_given_up = False
        self._changed = asyncio.Event()
        writer.on_lost = self._changed.set

    @property
    def epoch(self) -> WriterEpoch:
        """Returns the writer epoch of this term."""
        return self._rules.epoch

    @property
    def is_over(self) -> bool:
        """Returns whether the term has ended; `over` says why."""
        return self._rules.over is not None

    async def __aenter__(self) -> Self:
        """Waits for this machine's turn to lead, and then until all acknowledged records are in the state."""
        machine, writer = self._machine, self._writer
        machine.begin(self)
        try:
            await writer.__aenter__()
        except BaseException:
            machine.end(self)
            raise
        try:
            await machine.stop_following()
            await machine.replay(writer.fence)
        except BaseException:
            await self._leave()
            raise
        self._rules = TermRules(writer.epoch, writer.fence)
        assert self._rules.may_serve(machine.applied)
        self._running = asyncio.create_task(self._run())
        return self

    async def propose(self, command: bytes) -> Any:
        """Proposes a command, and returns the result of `apply` once the command is durable. If the call is
        cancelled, the command may or may not be applied.

        The `outcome` of an error says whether the command was applied, was not applied, or is in doubt: it may
        have been applied, or may be applied later.
        """
        self._check()
        await self._writer.ready()
        self._check()
        submission = self._writer.submit(command)
        waiter = _Waiter(command, submission, asyncio.get_running_loop().create_future())
        self._rules.on_proposed(waiter)
        self._changed.set()
        return await waiter.result

    async def over(self) -> RollbookError:
        """Waits until the term has ended and all waiting calls have their results. Returns the error that ended
        the term; `StaleEpoch` means that another machine leads.
        """
        try:
            return await asyncio.shield(self._running)
        except asyncio.CancelledError:
            if not self._running.cancelled() or self._rules.over is None:
                raise
            return self._rules.over

    async def __aexit__(self, *_: object) -> None:
        """Waits for the results of proposed commands, and then lets another machine lead. This machine follows
        the log again.
        """
        self._is_given_up = True
        self._changed.set()
        try:
            await self._running
        finally:
            self._running.cancel()
            await self._leave()

    async def _leave(self) -> None:
        try:
            await self._writer.leave()
        finally:
            self._machine.end(self)

    def _check(self) -> None:
        error = _given_up() if self._is_given_up else self._rules.over
        if error is not None:
            raise again(error, Outcome.NOT_APPLIED)

    # --- The only task of a term --------------------------------------------------------------

    async def _run(self) -> RollbookError:
        rules = self._rules
        try:
            rules.on_over(await self._serve())
            await self._settle()
        finally:  # If the task was cancelled, the term may have no error yet.
            rules.on_over(_given_up())
            self._writer.end()  # This settles the submissions of all remaining waiters.
            for waiter in rules.take_rest():
                waiter.fail(waiter.failure())
        assert rules.over is not None
        return rules.over

    async def _serve(self) -> RollbookError:
        """Applies acked records in order until the term is over."""
        rules, writer = self._rules, self._writer
        while True:
            waiter = rules.oldest
            if waiter is None:
                if writer.failure is not None:
                    return writer.failure
                if self._is_given_up:
                    return _given_up()
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                offset = await waiter.submission
                rules.on_acked(offset, self._machine.applied)
                result = self._machine.apply_own(offset, waiter.command, rules.epoch)
            except RollbookError as error:
                if rules.oldest is not waiter:
                    waiter.fail(error)
                return error
            waiter.tell(result)

    async def _settle(self) -> None:
        """Gives the waiters their outcomes, if these can be known (WK5)."""
        rules, below = self._rules, self._rules.settled_below()
        assert rules.over is not None
        if rules.oldest is None or below is None:
            return
        try:
            async with asyncio.timeout(self._machine.timeout_s):
                await self._machine.replay(below, self._on_replayed)
        except (RollbookError, TimeoutError):
            return
        for waiter in rules.take_rest():
            waiter.fail(again(rules.over, Outcome.NOT_APPLIED))

    def _on_replayed(self, epoch: WriterEpoch, result: Any) -> None:
        if (waiter := self._rules.on_replayed(epoch)) is not None:
            waiter.tell(result)


def _given_up() -> RollbookError:
    return ClientClosed("the term was given up")

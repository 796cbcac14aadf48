"""Replaces bookies that have failed, with one change of the ensemble at a time (WR3).

The steps of a change, and the reasons for their order, are in `core/ensemble_change.py`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.core.add_pipeline import LAGGARD_TICKS, AddPipeline
from rollbook.ledger.core.ensemble_change import OpenEnsemble
from rollbook.ledger.metadata_writer import MetadataWriter
from rollbook.ledger.quarantine_probe import pardon_those_that_answer
from rollbook.proto.errors import RollbookError
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import Fragment
from rollbook.proto.quorum import Quorum

_PAUSE_S_MIN: Final = 0.01
_PAUSE_S_MAX: Final = 1.0


class BookieReplacement:
    """Replaces failed bookies in a task, and passes the results to callbacks."""

    def __init__(
        self,
        quorum: Quorum,
        open_ensemble: OpenEnsemble,
        pipeline: AddPipeline,
        metadata_writer: MetadataWriter,
        context: ClientContext,
        *,
        question_s: float,
        on_moved: Callable[[Fragment], None],
        on_refused: Callable[[RollbookError], None],
    ) -> None:
        self._quorum, self._open_ensemble, self._pipeline = quorum, open_ensemble, pipeline
        self._metadata_writer = metadata_writer
        self._placement, self._health = context.placement, context.health
        self._bookies, self._clock = context.bookies, context.clock
        self._question_s = question_s
        self._on_moved, self._on_refused = on_moved, on_refused
        self._loop = asyncio.get_running_loop()
        self._is_frozen = False
        self._change: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_changing(self) -> bool:
        return self._change is not None

    @property
    def tasks(self) -> Iterable["asyncio.Task[None]"]:
        return [task for task in (self._change, self._asking) if task is not None]

    def start(self) -> None:
        """Starts to replace bookies; the writer calls this when a slot is down."""
        if self._change is None and not self._is_frozen:
            self._change = self._loop.create_task(self._replace_failed())

    def has_successor(self, slot: int) -> bool:
        """Returns whether a healthy bookie could take this slot now."""
        if self._is_frozen:
            return False
        now_ns = self._clock.monotonic_ns()
        live, ensemble = self._bookies.live(), self._open_ensemble.ensemble
        refusing = live.refusing(self._metadata_writer.ledger_id)
        return bool(
            self._placement.pick_replacements(
                self._quorum, ensemble, (slot,), live, now_ns, excluded=refusing
            )
        )

    def freeze(self) -> None:
        """Prevents further changes; a change in progress is completed."""
        self._is_frozen = True

    def thaw(self) -> None:
        self._is_frozen = False

    async def until_unchanging(self) -> None:
        """Waits for the end of a change in progress. If this wait is cancelled, so is the change."""
        if self._change is not None:
            await asyncio.gather(self._change, return_exceptions=True)

    def find_rested(self) -> list[int]:
        """Returns the slots that are down although their bookies' quarantine is over."""
        if self._change is not None:
            return []
        now_ns = self._clock.monotonic_ns()
        ensemble, is_quarantined = self._open_ensemble.ensemble, self._health.is_quarantined
        return [
            slot for slot in self._open_ensemble.down if not is_quarantined(ensemble[slot], now_ns)
        ]

    def ask_resting(self) -> None:
        """Asks bookies in quarantine whether they respond. The writer calls this regularly while a
        slot is down and no healthy bookie is left to replace it."""
        if self._asking is not None or self._is_frozen or self._pipeline.tick % LAGGARD_TICKS:
            return
        now_ns, ensemble = self._clock.monotonic_ns(), self._open_ensemble.ensemble
        down = [ensemble[slot] for slot in self._open_ensemble.down]
        others = [each for each in self._bookies.live().writable if each not in ensemble]
        resting = [b for b in (*others, *down) if self._health.is_quarantined(b, now_ns)]
        if resting:
            self._asking = self._loop.create_task(self._ask(resting))

    async def _ask(self, resting: list[BookieId]) -> None:
        await pardon_those_that_answer(
            resting, self._bookies, self._health, self._clock, question_s=self._question_s
        )
        self._asking = None

    async def _replace_failed(self) -> None:
        """Runs until no slot is down or no replacement is left; the next tick then tries again."""
        pause_s = 0.0
        try:
            while not self._is_frozen and (picks := self._pick()):
                lac = self._pipeline.acks.last_add_confirmed
                await self._move(picks)
                # Without progress it pauses: replacements that fail at once must not flood the
                # metadata store.
                is_progress = self._pipeline.acks.last_add_confirmed > lac
                pause_s = 0.0 if is_progress else min(2 * pause_s + _PAUSE_S_MIN, _PAUSE_S_MAX)
                await asyncio.sleep(pause_s)
        except RollbookError as error:
            self._on_refused(error)
        finally:
            self._change = None

    def _pick(self) -> dict[int, BookieId]:
        live = self._bookies.live()
        return self._placement.pick_replacements(
            self._quorum,
            self._open_ensemble.ensemble,
            self._open_ensemble.down,
            live,
            self._clock.monotonic_ns(),
            excluded=live.refusing(self._metadata_writer.ledger_id),
            is_urgent=self._open_ensemble.is_short,
        )

    async def _move(self, picks: dict[int, BookieId]) -> None:
        """Makes one change. Raises the error that ends the writer."""
        self._open_ensemble.on_leaving(picks)
        for slot in picks:
            self._pipeline.withdraw(slot)
        self._on_moved(await self._metadata_writer.move(picks, self._next_unconfirmed))

    def _next_unconfirmed(self) -> EntryId:
        return EntryId(self._pipeline.acks.last_add_confirmed + 1)

"""Runs the operation `drain`, which drains bookies, a few at a time, until all of them are Drained or one
fails.

    about   {"bookies": ["bk-2", "bk-3"], "at_most": 1, "force": false}

The operation begins drains and waits for them; the steward carries them out. The operation's notes have the
facts that it needs after a restart.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rollbook.proto.cluster.bookie_lifecycle_nodes import StoredLifecycle
from rollbook.proto.errors import (
    DrainBlocked,
    InvalidRequest,
    LifecycleConflict,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
    OperationIncomplete,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.core.rolling_drain import DRAINED, NO_NODE, DrainNotes, next_drains
from rollbook.recovery.operation_runner import OperationProgress
from rollbook.recovery.process_status_nodes import PresenceNodes

_LOOK_AGAIN_S: Final = 1.0
_REFUSALS: Final = (DrainBlocked, InvalidRequest, LifecycleConflict)
# Errors that mean that another client changed the bookie's lifecycle. The next look shows the change.
_RACES: Final = (MetadataConflict, NodeExists, NoSuchNode)


class DrainOperation:
    def __init__(self, departures: Departures, presence: PresenceNodes) -> None:
        self._departures = departures
        self._presence = presence

    async def work(self, run: OperationProgress) -> Mapping[str, Any]:
        """Drain all bookies. Raises `OperationIncomplete`."""
        bookies = [parse_bookie_id(each) for each in run.about["bookies"]]
        notes = DrainNotes.of(run.notes)
        if not run.notes:
            verdict = await self._departures.judge(bookies)
            notes = DrainNotes(ledgers={str(each): verdict.naming[each] for each in bookies})
            await run.note(notes.facts())
        while True:
            stored = await self._departures.status(bookies)
            seen = {
                each: (stored[each].lifecycle.state, _version(stored[each])) for each in bookies
            }
            step = next_drains(seen, notes, run.about["at_most"])
            began = {str(bookie): seen[bookie][1] for bookie in step.to_begin}
            if step.ended or began:
                ended = {**notes.ended, **{str(each): why for each, why in step.ended.items()}}
                notes = replace(notes, began={**notes.began, **began}, ended=ended)
                await run.note(notes.facts())
            for bookie in step.to_begin:
                if refusal := await self._begin(bookie, is_forced=run.about["force"]):
                    notes = replace(notes, ended={**notes.ended, str(bookie): refusal})
                    await run.note(notes.facts())
            await self._tell(run, notes, stored)
            if step.is_over:
                return _result(notes)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _begin(self, bookie: BookieId, *, is_forced: bool) -> str:
        """Begin to drain a bookie. Returns the reason why it cannot be drained, or an empty text."""
        try:
            await self._departures.drain([bookie], is_forced=is_forced)
        except _REFUSALS as error:
            return error.message
        except _RACES:
            pass
        return ""

    async def _tell(
        self, run: OperationProgress, notes: DrainNotes, stored: Mapping[BookieId, StoredLifecycle]
    ) -> None:
        left = await self._presence.drains()
        done = 0
        for bookie in stored:
            ledgers = notes.ledgers.get(bookie, 0)
            if bookie in notes.ended:
                done += ledgers
            elif stored[bookie].lifecycle.state is LifecycleState.DRAINING and bookie in left:
                done += max(ledgers - left[bookie], 0)
        run.on_progress(done, sum(notes.ledgers.values()))

    async def undo(self, run: OperationProgress) -> None:
        """Make those bookies Active again whose drain has begun but not ended. Copies that were made are
        kept.
        """
        notes = DrainNotes.of(run.notes)
        begun = [BookieId(each) for each in notes.began if each not in notes.ended]
        for bookie, stored in (await self._departures.status(begun)).items():
            if stored.lifecycle.state is not LifecycleState.ACTIVE:
                with contextlib.suppress(*_REFUSALS, *_RACES):
                    await self._departures.undrain(bookie)


def _version(stored: StoredLifecycle) -> int:
    return NO_NODE if stored.version is None else stored.version


def _result(notes: DrainNotes) -> dict[str, Any]:
    drained = [bookie for bookie, why in notes.ended.items() if why == DRAINED]
    others = {bookie: why for bookie, why in notes.ended.items() if why != DRAINED}
    if others:
        raise OperationIncomplete(
            f"{len(others)} of {len(notes.ended)} bookies are not drained: "
            + "; ".join(f"{bookie}: {why}" for bookie, why in list(others.items())[:10]),
            drained=drained,
            next_step="send GET /api/v1/bookies/{id}/lifecycle to see the reason for each bookie",
        )
    return {"drained": drained}

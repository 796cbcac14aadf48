"""Ends the quarantine of bookies that respond, for a caller that needs one of them."""

import asyncio
from collections.abc import Sequence

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Clock
from rollbook.proto.wire.messages import BookieInfoReply, GetBookieInfo


async def pardon_those_that_answer(
    resting: Sequence[BookieId],
    bookies: Bookies,
    health: Health,
    clock: Clock,
    *,
    question_s: float,
) -> None:
    """Asks all bookies at the same time, and ends the quarantine of those that respond. A bookie
    that hangs does not respond, and stays in quarantine."""
    question = GetBookieInfo(total_bytes=False, free_bytes=False)
    calls = [bookies.call(each, question, deadline_s=question_s) for each in resting]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for bookie, answer in zip(resting, answers, strict=True):
        if isinstance(answer, BookieInfoReply) and answer.error is None:
            health.pardon(bookie, clock.monotonic_ns())

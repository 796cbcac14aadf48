"""Repeats work that fails because the metadata store is unavailable."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Never, TypeVar

import structlog

from rollbook.proto.errors import (
    MetadataUnavailable,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.ports import Watch

logger = structlog.get_logger()

RETRY_PAUSE_S: Final = 0.5
# Seconds between two looks without an event, since a watch may miss events.
LOOK_AGAIN_S: Final = 60.0
T = TypeVar("T")

AWAY: Final = (Unavailable, OutcomeUnknown, SessionExpired)


async def patiently(part: str, work: Callable[[], Awaitable[object]]) -> Never:
    """Repeat `work` until cancelled, with a pause after each outage of the store."""
    while True:
        await until_done(part, work)


async def until_done(part: str, work: Callable[[], Awaitable[T]]) -> T:
    """Repeat `work` until it ends without an outage of the store. Returns its result."""
    while True:
        try:
            return await work()
        except AWAY as error:
            logger.warning("recovery_part_waits", part=part, reason=error.code.reason)
            await asyncio.sleep(RETRY_PAUSE_S)


async def follow(
    part: str, watch: Callable[[], Awaitable[Watch]], look: Callable[[], Awaitable[None]]
) -> Never:
    """Call `look` at the start, after each event, and regularly without an event."""

    async def once() -> None:
        stream = await watch()
        try:
            while True:
                await look()
                try:
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await anext(stream)
                except TimeoutError:
                    pass
                except StopAsyncIteration:
                    raise MetadataUnavailable("the metadata store was closed") from None
        finally:
            await stream.close()

    await patiently(part, once)

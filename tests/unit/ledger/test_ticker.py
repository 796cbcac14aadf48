import asyncio
from functools import partial

from rollbook.ledger.ticker import Ticker

TICK_S = 0.08


async def test_whoever_asks_is_called_once_within_a_tick() -> None:
    ticker, loop = Ticker(TICK_S), asyncio.get_running_loop()
    called: list[float] = []
    asked = loop.time()
    ticker.call_next(lambda: called.append(loop.time() - asked))
    async with asyncio.timeout(30):
        while not called:
            await asyncio.sleep(TICK_S / 16)
    await asyncio.sleep(2 * TICK_S)
    (after_s,) = called
    assert after_s >= TICK_S * 6 / 8


async def test_those_who_go_on_asking_share_one_timer() -> None:
    ticker = Ticker(TICK_S)
    counts = [0] * 50
    over = asyncio.get_running_loop().create_future()

    def tick(number: int) -> None:
        counts[number] += 1
        if counts[number] < 4:
            ticker.call_next(partial(tick, number))
        elif counts == [4] * 50:
            over.set_result(None)

    for number in range(50):
        ticker.call_next(partial(tick, number))
    async with asyncio.timeout(30):
        await over


async def test_a_ticker_that_is_closed_calls_nobody() -> None:
    ticker = Ticker(TICK_S)
    called: list[None] = []
    ticker.call_next(lambda: called.append(None))
    ticker.close()
    await asyncio.sleep(2 * TICK_S)
    assert not called

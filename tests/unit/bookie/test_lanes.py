"""Lanes: who is offered is served."""

import asyncio
from typing import cast

from rollbook.bookie.lanes import Asked, Lane, Queue
from rollbook.proto.wire.messages import Call


async def test_who_comes_while_the_last_task_ends_is_served() -> None:
    """It has looked for more and found nothing, and still counts as one of the lane's tasks."""
    served: list[Asked] = []
    crashes: list[BaseException] = []
    lane = Lane(1, crashes.append)

    async def serve(asked: Asked) -> None:
        served.append(asked)
        if asked is first:
            asyncio.get_running_loop().call_soon(lane.offer, queues[1])

    first, late = (Asked(cast(Call, None), heard_ns) for heard_ns in (1, 2))
    queues = [
        Queue(serve=serve, on_change=lambda: None, may_begin=lambda: True, at_once_max=1)
        for _ in range(2)
    ]
    for queue, asked in zip(queues, (first, late), strict=True):
        queue.asked.append(asked)
    lane.offer(queues[0])
    async with asyncio.timeout(30):
        while len(served) < 2:
            await asyncio.sleep(0)
    assert served == [first, late]
    assert not crashes
    await lane.close()

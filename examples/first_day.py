"""The Python client in one page, with the types that a program writes down: `python examples/first_day.py`.

Without an argument it goes to the cluster that the shell uses: `ROLLBOOK_SERVER`, or the current context.
"""

import asyncio
import sys
from datetime import UTC, datetime

import rollbook
from rollbook import Client, Cursor, Log, LogName, Record, RecordBatch, Tail, Writer
from rollbook.errors import NoSuchCursor, NoSuchLog, RollbookError

ORDERS = LogName("first-day", "orders")


def append(log: Log) -> None:
    """Durable when it returns; with a key, once, however often this program is run."""
    happened = datetime(2026, 1, 31, 12, tzinfo=UTC)
    paid = log.append(
        b"paid",
        key="17",
        headers={"source": "shop"},
        event_time=happened,
        idempotency_key="payment-17",
    )
    print("paid at offset", paid.first_offset, "again" if paid.is_duplicate else "now")
    writer: Writer
    with log.writer() as writer:
        results = [writer.submit(b"item %d" % number, key="17") for number in range(1000)]
    print("the last of many at", results[-1].result())


def read(log: Log) -> None:
    record: Record
    for record in log.read("earliest", 1):
        print(record.value.decode(), record.key, dict(record.headers), record.event_time)
    batch: RecordBatch
    count = 0
    for batch in log.read_batches():
        count += len(batch.values())
    print(count, "records")


def follow(log: Log) -> None:
    """From where the last run has left off; ends when nothing has come for a moment."""
    cursor: Cursor = log.cursor("billing")
    place = cursor.get(default=None)
    tail: Tail
    with log.tail("earliest" if place is None else "cursor:billing", timeout=0.5) as tail:
        following = 0
        for record in tail:
            following = record.offset + 1
        if following:
            cursor.commit(following)
    print("billing is at", cursor.get().offset)


def mistaken(client: Client) -> None:
    try:
        client.open("first-day/none")
    except NoSuchLog as error:
        print(type(error).__name__, error.outcome.value)
    try:
        client.open(ORDERS).cursor("none").get()
    except NoSuchCursor as error:
        print(type(error).__name__, error.outcome.value)
    except RollbookError as error:
        print("something else:", error.next_step)


async def in_a_loop(url: str | None) -> None:
    """The same with an event loop: the same names, in `rollbook.aio`."""
    async with rollbook.aio.connect(url) as client:
        log: rollbook.aio.Log = await client.open(ORDERS)
        tail: rollbook.aio.Tail = log.tail(-1)
        newest: Record | None = await tail.poll(10)
        await tail.aclose()
        print("the newest is", newest.value.decode() if newest is not None else "missing")


def main(url: str | None) -> None:
    with rollbook.connect(url) as client:
        log: Log = client.open(ORDERS, create=True)
        append(log)
        read(log)
        follow(log)
        mistaken(client)
        print(*client.logs("first-day/*"))
    asyncio.run(in_a_loop(url))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)

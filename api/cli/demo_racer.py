"""One of the processes of `rollbook demo`: races to close every ledger of a cluster.

It says on its standard output what it was told, a line each, when it was told:

    closed LEDGER LAST_ENTRY     the metadata store acknowledged our close
    done
"""

import asyncio
import sys

from rollbook.proto.cluster.cluster import open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import ConnectionLost, Superseded
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store


async def race(url: MetadataUrl, number: int) -> None:
    async with await open_metadata_store(url, serve=True) as store:
        cluster = await open_cluster(store, url.ledgers_root)
        ledgers = LedgerNodes(store, cluster.root, cluster.layout)
        async for ledger_id in ledgers.ids():
            # Which one we would end it at tells afterwards who closed it.
            await close(ledgers, ledger_id, last_entry=EntryId(number))
        say("done")


async def close(ledgers: LedgerNodes, ledger_id: LedgerId, last_entry: EntryId) -> None:
    while True:
        stored = await ledgers.read(ledger_id)
        if stored.metadata.is_closed:
            return  # A rival was quicker.
        try:
            stored = await ledgers.update(stored, stored.metadata.with_recovery_started())
            closed = stored.metadata.with_recovery_closed(last_entry, length=100)
            await ledgers.update(stored, closed)
        except (Superseded, ConnectionLost):
            continue  # Someone else moved on, or the owner died under us: look again.
        say(f"closed {ledger_id} {last_entry}")
        return


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logs(level="error")
    asyncio.run(race(MetadataUrl.parse(sys.argv[1]), int(sys.argv[2])))

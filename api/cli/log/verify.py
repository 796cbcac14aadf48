"""The action of `rollbook log verify`, which reads a whole log and checks every block and offset."""

from typing import Any

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.proto.errors import DataLost


def verify_log(access: LogAccess, log: str, output: str) -> None:
    """Reads the log like an application, up to a barrier, and checks each block's checksum and each offset."""

    async def read(client: Client) -> dict[str, Any]:
        opened = await client.open(log)
        end = await opened.tail_offset(consistency=messages.Consistency.BARRIER)
        head = await opened.head_offset()
        # Looks for deleted ledgers first, because reads could succeed from a server's memory.
        for segment in await opened.segments():
            if segment.state is messages.SegmentState.LOST:
                raise DataLost(
                    f"the ledger of segment {segment.segment_id} was deleted, and its records are lost",
                    log=log,
                    ledger_id=segment.ledger_id,
                    start=segment.base_offset,
                    end=segment.next_offset,
                    next_step=f"to give these records up: rollbook log truncate {log} --before {segment.next_offset}",
                )
        next_offset, size, batches = int(head), 0, 0
        async for batch in opened.read_batches(head, end):
            if batch.base_offset != next_offset:
                raise DataLost(f"offset {next_offset} is missing", log=log)
            values = batch.values()  # Decodes each block and checks its CRC.
            next_offset += len(values)
            size += sum(map(len, values))
            batches += 1
        if next_offset != end:
            raise DataLost(f"the log ends at offset {next_offset}, before its tail {end}", log=log)
        facts = {"log": str(opened.name), "head": head, "tail": end, "records": end - head}
        return facts | {"bytes": size, "batches": batches, "sound": True}

    tell(access.run(read, log), output, "records")

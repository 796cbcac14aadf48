"""The size of a block of records that quotas count.

This is not in `quotas.py`, because the readers of an access file would then load the decoder of blocks.
"""

from rollbook.logservice.core.record_block import HEADER_BYTES, opened_bytes_of, span_of
from rollbook.logservice.log_config import BATCH_RECORDS_CEILING


def size_of(block: bytes) -> tuple[int, int]:
    """The number of the block's records, and its size: stored or unpacked, whichever is larger.

    Only the header is read. A block that claims more records than a batch may have is refused
    later.
    """
    records = 0
    if len(block) >= HEADER_BYTES:
        start, end = span_of(block)
        records = min(max(end - start, 0), BATCH_RECORDS_CEILING)
    return records, opened_bytes_of(block)

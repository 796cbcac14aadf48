"""What whoever may not is told, and how large a block is before anybody has looked into it."""

from typing import Any

from rollbook.logservice.core.block import HEADER_BYTES, opened_bytes_of, span_of
from rollbook.logservice.log_config import BATCH_RECORDS_CEILING
from rollbook.proto.errors import Unauthorized


def refusal_of(principal: str, word: Any) -> Unauthorized:
    """The same whether there is such a log or not."""
    log = getattr(word, "log", None)
    if log is None:
        return Unauthorized(f"{principal} does not operate this cluster")
    return Unauthorized(f"{principal} may not do this there", log=str(log))


def size_of(block: bytes) -> tuple[int, int]:
    """Records, and bytes as stored or as unpacked, whichever are more.

    Only the header is read. A block that claims more records than a batch may have is refused later.
    """
    records = 0
    if len(block) >= HEADER_BYTES:
        start, end = span_of(block)
        records = min(max(end - start, 0), BATCH_RECORDS_CEILING)
    return records, opened_bytes_of(block)

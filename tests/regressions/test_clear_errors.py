"""What ended in the terms of Python, and not in an error that says what to do."""

from collections.abc import AsyncIterator

import pytest

from rollbook.logservice import words
from rollbook.logservice.ids import Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadConfig, RollbookError
from tests.regressions.defects import defect


@defect(
    "short-block-is-a-struct-error",
    "A block shorter than its header, from a hostile server, ended a reader with struct.error.",
)
async def test_a_short_block_is_a_clear_error() -> None:
    from tests.unit.api.client.conftest import Site  # It serves no older product.

    async def tell(request: words.ReadStream) -> AsyncIterator[words.ReadEvent]:
        yield words.Records((b"RBK\1",), Offset(0), Offset(1))

    site = Site()
    core = await site.start("a")
    core.events = tell
    client = site.client("a")
    try:
        log = await client.open("orders", create=True)
        with pytest.raises(RollbookError) as caught:
            async for _ in log.tail():
                pass
        assert caught.value.code.reason == "BLOCK_CORRUPT"
        assert "this one has 4" in str(caught.value)
    finally:
        await client.close()
        await site.stop("a")


@defect(
    "writer-mode-as-text-is-a-key-error",
    '`LogConfig(writer_mode="exclusive")` was taken, and ended in KeyError when a log was made with it.',
)
def test_a_writer_mode_that_is_text_is_refused_with_what_to_say() -> None:
    with pytest.raises(BadConfig, match=r"say WriterMode\.OPEN or WriterMode\.EXCLUSIVE"):
        LogConfig(writer_mode="exclusive")  # type: ignore[arg-type]  # As programs without types do.

"""Batches of any shape, for tests."""

from dataclasses import dataclass

from hypothesis import strategies as st

from rollbook.logservice.core.record_block import Codec, Headers, pack_block, stamped
from rollbook.logservice.ids import ProducerRef


@dataclass(frozen=True)
class BlockSource:
    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[Headers | None] | None
    event_times: list[int | None] | None
    producer: ProducerRef | None
    codec: Codec

    def pack(self) -> bytes:
        return pack_block(
            self.values,
            keys=self.keys,
            headers=self.headers,
            event_times=self.event_times,
            producer=self.producer,
            codec=self.codec,
        )


PRODUCERS = st.builds(
    ProducerRef,
    st.binary(min_size=1, max_size=64),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
)
_NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8)
_HEADERS = st.none() | st.dictionaries(_NAMES, st.binary(max_size=8), max_size=3)
_TIMES = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)


@st.composite
def batches(draw: st.DrawFn) -> BlockSource:
    values = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
    count = len(values)

    def column(items: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        return st.none() | st.lists(items, min_size=count, max_size=count)

    return BlockSource(
        values,
        draw(column(st.none() | st.binary(max_size=8))),  # type: ignore[arg-type]  # Lists are invariant.
        draw(column(_HEADERS)),  # type: ignore[arg-type]  # Lists are invariant.
        draw(column(_TIMES)),  # type: ignore[arg-type]  # Lists are invariant.
        draw(st.none() | PRODUCERS),
        draw(st.sampled_from(Codec)),
    )


def stamped_at(block: bytes, base_offset: int = 0) -> bytes:
    return stamped(
        block, base_offset=base_offset, base_timestamp_us=1_700_000, owner_epoch=3, writer_epoch=2
    )

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.logservice.core.control_blocks import (
    Barrier,
    Control,
    Follows,
    Opened,
    ProducerBegun,
    SealBlock,
    Snapshot,
    WriterAcquired,
    WriterReleased,
    pack_control,
    unpack_control,
)
from rollbook.logservice.core.record_block import CEILING, Block, check_block, pack_control_block
from rollbook.proto.errors import BlockCorrupt, InvalidBlock
from tests.unit.logservice.core.blocks import stamped_at

_INTS = st.integers(-1, 2**63 - 1)
CONTROLS: st.SearchStrategy[Control] = st.one_of(
    st.builds(Follows, _INTS, _INTS, st.binary(), st.binary(), st.binary()),
    st.builds(Snapshot, st.binary(), st.binary(), st.binary()),
    st.builds(ProducerBegun, st.binary(), st.integers(0, 2**32 - 1), st.booleans()),
    st.builds(Opened, _INTS, st.text(), st.text()),
    st.builds(WriterAcquired, _INTS, st.text(), _INTS),
    st.builds(WriterReleased, _INTS),
    st.just(Barrier()),
    st.just(SealBlock()),
)


@given(CONTROLS)
def test_control_survives_a_round_trip(control: Control) -> None:
    block = Block(stamped_at(pack_control(control), 7))
    assert block.is_control
    assert (block.base_offset, block.next_offset) == (7, 7)
    assert unpack_control(block) == control


def test_unknown_control_kind_is_skipped() -> None:
    unheard_of = b"\xfa\x07\x03abc"  # Field 127, three bytes.
    assert unpack_control(Block(stamped_at(pack_control_block(unheard_of)))) is None


def test_unreadable_control_block_is_corrupt() -> None:
    with pytest.raises(BlockCorrupt):
        unpack_control(Block(stamped_at(pack_control_block(b"\x0a\xff"))))


def test_control_block_of_a_client_is_refused() -> None:
    with pytest.raises(InvalidBlock):
        check_block(pack_control(SealBlock()), CEILING)


def test_large_snapshot_survives_a_round_trip() -> None:
    state = bytes(3_000_000)
    assert unpack_control(Block(stamped_at(pack_control(Snapshot(state))))) == Snapshot(state)

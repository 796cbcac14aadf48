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
def test_what_was_said_is_heard(control: Control) -> None:
    block = Block(stamped_at(pack_control(control), 7))
    assert block.is_control
    assert (block.base_offset, block.next_offset) == (7, 7)
    assert unpack_control(block) == control


def test_a_kind_of_the_future_is_passed_over() -> None:
    unheard_of = b"\xfa\x07\x03abc"  # Field 127, three bytes.
    assert unpack_control(Block(stamped_at(pack_control_block(unheard_of)))) is None


def test_what_cannot_be_read_is_no_kind_of_the_future() -> None:
    with pytest.raises(BlockCorrupt):
        unpack_control(Block(stamped_at(pack_control_block(b"\x0a\xff"))))


def test_a_client_controls_nothing() -> None:
    with pytest.raises(InvalidBlock):
        check_block(pack_control(SealBlock()), CEILING)


def test_a_large_memory_fits() -> None:
    state = bytes(3_000_000)
    assert unpack_control(Block(stamped_at(pack_control(Snapshot(state))))) == Snapshot(state)

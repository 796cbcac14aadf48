"""LAYOUT and INSTANCEID in the formats of current and old Java releases."""

import pytest

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.layout import (
    Layout,
    pack_instance_id,
    pack_layout,
    unpack_instance_id,
    unpack_layout,
)
from rollbook.proto.formats.node_byte_checks import METADATA_BYTES_MAX
from tests.golden import metadata as golden

VECTORS = [
    (Layout.HIERARCHICAL, golden.LAYOUT_HIERARCHICAL),
    (Layout.LONG_HIERARCHICAL, golden.LAYOUT_LONG),
    (Layout.LEGACY_HIERARCHICAL, golden.LAYOUT_LEGACY),
    (Layout.FLAT, golden.LAYOUT_FLAT),
]


@pytest.mark.parametrize(("layout", "data"), VECTORS)
def test_layout_matches_bytes_of_java(layout: Layout, data: bytes) -> None:
    assert pack_layout(layout) == data
    assert unpack_layout(data) is layout


def test_the_default_layout_has_63_bytes() -> None:
    assert len(golden.LAYOUT_HIERARCHICAL) == 63


@pytest.mark.parametrize(
    ("data", "layout"),
    [
        (b"1\nhierarchical:1", Layout.HIERARCHICAL),
        (b"1\nflat:1", Layout.FLAT),
        (golden.LAYOUT_FLAT + b"\n", Layout.FLAT),
    ],
)
def test_old_layouts_without_class_names_are_read(data: bytes, layout: Layout) -> None:
    assert unpack_layout(data) is layout


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"2\n",
        b"2\nhierarchical:1",
        b"1\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        b"3\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:2",
        b"2\norg.apache.bookkeeper.meta.MSLedgerManagerFactory:1",
        b"1\nms:1",
        "2\nhiérarchique:1".encode(),
        b"2\n" + b"x" * METADATA_BYTES_MAX,
    ],
)
def test_any_other_layout_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_layout(data)


def test_only_hierarchical_layouts_take_new_ledgers() -> None:
    assert [layout.takes_new_ledgers for layout in Layout] == [True, True, False, False]


def test_instance_id_is_uuid_without_newline() -> None:
    text = golden.INSTANCE_ID.decode()
    assert pack_instance_id(text) == golden.INSTANCE_ID
    assert unpack_instance_id(golden.INSTANCE_ID) == text


@pytest.mark.parametrize("data", [b"", b"x", golden.INSTANCE_ID + b"\n", b"\xff" * 36, b"-" * 36])
def test_invalid_instance_id_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_instance_id(data)

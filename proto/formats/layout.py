"""The nodes LAYOUT, which says where ledgers are below the root, and INSTANCEID, which has the cluster's id.

LAYOUT is text without a newline at its end: the layout format version, LF, the ledger manager's
Java class, `:`, the manager's version. Java loads the class that is named here. Version 1, from
before BookKeeper 4.2, has a short name instead of the class. INSTANCEID is a UUID as text.
"""

import re
from enum import Enum
from typing import Final

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.node_byte_checks import decode_ascii


class Layout(Enum):
    """The ways to turn ledger ids into paths. The values are the names that BookKeeper's URLs use."""

    HIERARCHICAL = "hierarchical"  # Paths are short for ids below 2^31 - 1, and long from there on.
    LONG_HIERARCHICAL = "longhierarchical"
    # All paths are short. Rollbook reads and updates such clusters, but creates none.
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    FLAT = "flat"  # Rollbook reads and updates such clusters, but creates none.

    @property
    def takes_new_ledgers(self) -> bool:
        return self in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL)


_CLASSES: Final = {
    Layout.HIERARCHICAL: "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
    Layout.LONG_HIERARCHICAL: "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    Layout.LEGACY_HIERARCHICAL: "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory",
    Layout.FLAT: "org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
}
_BY_NAME: Final = {
    **{("2", name): layout for layout, name in _CLASSES.items()},
    ("1", "hierarchical"): Layout.HIERARCHICAL,
    ("1", "flat"): Layout.FLAT,
}
_MANAGER_VERSION: Final = "1"

_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def layout_of_class(name: str) -> Layout | None:
    return _BY_NAME.get(("2", name))


def pack_layout(layout: Layout) -> bytes:
    return f"2\n{_CLASSES[layout]}:{_MANAGER_VERSION}".encode()


def unpack_layout(data: bytes) -> Layout:
    format_version, _, rest = decode_ascii(data, "LAYOUT").rstrip("\n").partition("\n")
    name, _, manager_version = rest.partition(":")
    layout = _BY_NAME.get((format_version, name))
    if layout is None or manager_version != _MANAGER_VERSION:
        raise BadMetadata(f"LAYOUT names an unknown ledger manager: {data[:200]!r}")
    return layout


def is_instance_id(data: bytes) -> bool:
    return _UUID.fullmatch(data.decode("ascii", "replace")) is not None


def pack_instance_id(instance_id: str) -> bytes:
    assert _UUID.fullmatch(instance_id)
    return instance_id.encode()


def unpack_instance_id(data: bytes) -> str:
    text = decode_ascii(data, "INSTANCEID")
    if not _UUID.fullmatch(text):
        raise BadMetadata(f"INSTANCEID is not a UUID: {text[:80]!r}")
    return text

"""The decoders of metadata nodes and of their names.

Other tools write metadata, too. The corpus also has unusual but legal spellings of texts, so that
mutations combine their parts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats import paths, replication
from rollbook.proto.formats.cookie import pack_cookie, unpack_cookie
from rollbook.proto.formats.layout import (
    Layout,
    pack_instance_id,
    pack_layout,
    unpack_instance_id,
    unpack_layout,
)
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata, unpack_ledger_metadata
from rollbook.proto.formats.service_info import (
    BookieServiceInfo,
    pack_service_info,
    unpack_service_info,
)
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from tests.fuzz.targets import Target
from tests.golden import metadata as golden

LEDGER: Final = LedgerId(7)
BOOKIE: Final = BookieId("127.0.0.1:3181")

_V3_HEADER: Final = b"BookieMetadataFormatVersion\t3\n"
_FIRST_FIELD: Final = b"\x08\x02"  # Write quorum 2. The length before it never has these bytes.
_TEXTS: Final = (golden.OPEN_V2, golden.COOKIE, golden.MARK, golden.REPLICATION_LAYOUT, golden.VOTE)
_SPELLINGS: Final = (
    b"replica: 'a:1' replica: \"b\" ':2'  # Two pieces, one bookie.\nctime: 0x7f\n",
    b'replica: ["a:1", "b:2"], ctime: -017;\n',
    b'bookieId: "\\377\\x41\\u00fc\\n\\\\\\""\n',
    b"segment < ensembleMember: 'a' firstEntryId: 0 > state: 1 length: 9223372036854775808\n",
    b"quorumSize: 1e9 ensembleSize: inf ackQuorumSize: nan ctime: -9223372036854775808\n",
    b'customMetadata { key: "\\0" value: "\xc3\xbc" }\n',
)


def targets() -> list[Target]:
    old_versions = (golden.OPEN_V1, golden.IN_RECOVERY_V1, golden.CLOSED_V1, golden.OPEN_V2)
    version_3 = (golden.OPEN_V3, golden.IN_RECOVERY_V3, golden.CLOSED_V3)
    infos = (golden.SERVICE_INFO, golden.SERVICE_INFO_HTTP)
    return [
        _target(
            "ledger metadata",
            partial(unpack_ledger_metadata, LEDGER),
            (*old_versions, *version_3, *_SPELLINGS),
            pack_ledger_metadata,
        ),
        _target(
            "ledger metadata messages",
            _unpack_body,
            tuple(data[data.index(_FIRST_FIELD) :] for data in version_3),
            _pack_body,
        ),
        _target("service infos", _unpack_info, infos, _pack_info),
        _target("cookies", unpack_cookie, (golden.COOKIE, golden.COOKIE_V3, *_TEXTS), pack_cookie),
        _target("marks", replication.unpack_mark, (*_TEXTS, *_SPELLINGS), replication.pack_mark),
        _target("locks", replication.unpack_lock, (*_TEXTS, *_SPELLINGS), replication.pack_lock),
        _target(
            "votes", replication.unpack_vote, (golden.VOTE, *_SPELLINGS), replication.pack_vote
        ),
        _target("layouts of marks", replication.check_replication_layout, _TEXTS),
        _target("times of checks", replication.unpack_checked_at, (golden.CHECKED_AT,)),
        _target("delays", replication.unpack_seconds, (b"0", b"86400"), replication.pack_seconds),
        _target(
            "LAYOUT",
            unpack_layout,
            (golden.LAYOUT_HIERARCHICAL, golden.LAYOUT_LONG, golden.LAYOUT_FLAT, b"1\nflat:1"),
            pack_layout,
        ),
        _target("INSTANCEID", unpack_instance_id, (golden.INSTANCE_ID,), pack_instance_id),
        *(_path_target(layout) for layout in Layout),
        Target(
            "names of marks",
            lambda data: replication.ledger_of_mark(data.decode("latin-1")),
            (),
            (b"urL0000012345", b"urL5403966536597700333", b"L1"),
            lambda found: b"" if found is None else replication.mark_name(found).encode(),
        ),
    ]


def _target(
    name: str,
    decode: Callable[[bytes], Any],
    corpus: tuple[bytes, ...],
    encode: Callable[[Any], bytes] | None = None,
) -> Target:
    return Target(name, decode, (BadMetadata,), corpus, encode)


def _unpack_body(body: bytes) -> object:
    """Puts the body in a correct frame, so that its contents are decoded."""
    size = len(body)
    varint = bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))
    return unpack_ledger_metadata(LEDGER, _V3_HEADER + varint + body)


def _pack_body(metadata: LedgerMetadata) -> bytes:
    sized = pack_ledger_metadata(metadata)[len(_V3_HEADER) :]
    return sized.lstrip(bytes(range(0x80, 0x100)))[1:]


def _unpack_info(data: bytes) -> BookieServiceInfo | None:
    """None means that the bookie listens nowhere.

    Rollbook never writes that, so it has no encoding.
    """
    info = unpack_service_info(BOOKIE, data)
    return info if info.endpoints else None


def _pack_info(info: BookieServiceInfo | None) -> bytes:
    return b"\x08\x00" if info is None else pack_service_info(info)


def _path_target(layout: Layout) -> Target:
    """Any name of a node either names a ledger or does not."""

    def decode(data: bytes) -> LedgerId | None:
        return paths.ledger_of_path(layout, data.decode("latin-1"))

    def encode(found: LedgerId | None) -> bytes:
        return b"" if found is None else paths.ledger_path(layout, found).encode()

    corpus = tuple(path.encode() for path in golden.LEDGER_PATHS.values())
    return Target(f"{layout.value} paths", decode, (), (*corpus, b"L0000012345"), encode)

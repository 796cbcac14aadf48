"""The cookie that ties a bookie's id to its directories and to its cluster.

A node and the file VERSION in each of the bookie's directories have the same text: a line with the
layout version, then the protobuf text of a CookieFormat. Rollbook writes version 5. Version 4 has
the same form. Version 3 has three lines after its version: bookie id, journal directories, ledger
directories.

Journal directories are separated by `,`. Ledger and index directories are written as their number,
and then each path after a TAB.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rollbook.proto.errors import BadMetadata, InvalidRequest
from rollbook.proto.formats.checked_protobuf import as_bookie_id, pack_text, unpack_text
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.proto.ids import BookieId
from rollbook.proto.wire.schema.data_formats_pb2 import CookieFormat

_VERSION: Final = 5
_READABLE: Final = re.compile(r"[345]")
# How many parsed texts are cached. A start reads the same text from each directory.
_REMEMBERED: Final = 4


@dataclass(frozen=True, slots=True)
class Cookie:
    """The contents of a cookie. Two cookies agree iff they are equal; directories are compared as
    strings, in their order.
    """

    bookie_id: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    # Empty unless they are configured separately from the ledger directories.
    index_dirs: tuple[str, ...] = ()
    instance_id: str | None = None  # None if the cluster is older than instance ids.


@lru_cache(_REMEMBERED)
def pack_cookie(cookie: Cookie) -> bytes:
    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=_pack_list(cookie.journal_dirs, ","),
        ledgerDirs=_pack_counted(cookie.ledger_dirs),
        instanceId=cookie.instance_id,
        indexDirs=_pack_counted(cookie.index_dirs) if cookie.index_dirs else None,
    )
    return f"{_VERSION}\n".encode() + pack_text(message)


@lru_cache(_REMEMBERED)
def unpack_cookie(data: bytes) -> Cookie:
    check_size(data)
    head, _, body = data.partition(b"\n")
    version = head.strip().decode("ascii", "replace")
    if not _READABLE.fullmatch(version):
        raise BadMetadata(f"a cookie of version {version[:20]!r}; 3, 4 and 5 can be read")
    message = _unpack_three_lines(body) if version == "3" else unpack_text(CookieFormat, body)
    return Cookie(
        as_bookie_id(message.bookieHost),
        _unpack_list(message.journalDir, ","),
        _unpack_counted(message.ledgerDirs),
        _unpack_counted(message.indexDirs) if message.indexDirs else (),
        message.instanceId or None,
    )


def _unpack_three_lines(body: bytes) -> CookieFormat:
    try:
        lines = body.decode().split("\n")
    except UnicodeDecodeError:
        raise BadMetadata("a cookie that is not UTF-8") from None
    if len(lines) < 3:
        raise BadMetadata("a cookie of version 3 has three lines after its version")
    return CookieFormat(bookieHost=lines[0], journalDir=lines[1], ledgerDirs=lines[2])


def _pack_list(paths: tuple[str, ...], separator: str) -> str:
    for path in paths:
        if not path or separator in path or not _is_unicode(path):
            raise InvalidRequest(f"directory {path!r} cannot be written to a cookie")
    return separator.join(paths)


def _is_unicode(path: str) -> bool:
    """Returns whether the path is UTF-8: Python decodes other bytes as lone surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unpack_list(text: str, separator: str) -> tuple[str, ...]:
    paths = tuple(text.split(separator)) if text else ()
    if not all(paths):
        raise BadMetadata(f"a list of directories has an empty entry: {text[:200]!r}")
    return paths


def _pack_counted(paths: tuple[str, ...]) -> str:
    return "\t".join((str(len(paths)), *([_pack_list(paths, "\t")] if paths else [])))


def _unpack_counted(text: str) -> tuple[str, ...]:
    count, _, rest = text.partition("\t")
    paths = _unpack_list(rest, "\t")
    if count != str(len(paths)):
        raise BadMetadata(f"a list of directories says {count[:20]!r} and names {len(paths)}")
    return paths

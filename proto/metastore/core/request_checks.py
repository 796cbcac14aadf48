"""Checks the paths and sizes of requests to a metadata store before any store gets them.

A path is `/` or a sequence of `/name`. A name has 1 to 255 visible ASCII characters other than `/`,
and is neither `.` nor `..`. ZooKeeper accepts every request that passes these checks, and some
other names, too. The name of a sequential node is checked before the digits are appended.

The size of a request is the sum of the bytes of its paths and values, plus `OP_BYTES` for each
operation. The limit keeps every request below one megabyte, at which a ZooKeeper server closes the
connection (`jute.maxbuffer`).
"""

import re
from collections.abc import Sequence
from typing import Final

from rollbook.proto.errors import EntryTooLarge, InvalidRequest, RollbookError
from rollbook.proto.ports import Create, Delete, Op, Set

ROOT: Final = "/"
REQUEST_BYTES_MAX: Final = 1_000_000
OP_BYTES: Final = 128
PATH_CHARACTERS_MAX: Final = 4096
VERSION_MAX: Final = 2**31 - 1  # ZooKeeper's versions have 32 bits.

_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[!-.0-~]{1,255})+", re.ASCII)


def check_path(path: str) -> None:
    if path == ROOT or (len(path) <= PATH_CHARACTERS_MAX and _PATH.fullmatch(path)):
        return
    raise InvalidRequest(
        f"{path[:80]!r} is not a valid path: `/` or `/name/name`, each name 1 to 255 visible ASCII "
        "characters, not `.` or `..`"
    )


def check_ops(ops: Sequence[Op]) -> None:
    """Raises an error for operations that no store would accept. The error has the index of the
    first invalid operation.
    """
    weight = 0
    for index, op in enumerate(ops):
        try:
            weight += _weigh(op)
            if weight > REQUEST_BYTES_MAX:
                raise EntryTooLarge(
                    f"a request may have at most {REQUEST_BYTES_MAX:,} bytes", path=op.path
                )
        except RollbookError as error:
            error.ids["op"] = index
            raise


def _weigh(op: Op) -> int:
    check_path(op.path)
    value = b""
    if isinstance(op, Create | Set):
        value = op.value
        if not isinstance(value, bytes):
            raise InvalidRequest("a value is bytes", path=op.path)
    if not isinstance(op, Create) and op.version is not None and not 0 <= op.version <= VERSION_MAX:
        raise InvalidRequest(f"{op.version} is not a version", path=op.path)
    if isinstance(op, Delete) and op.path == ROOT:
        raise InvalidRequest("the root cannot be deleted", path=op.path)
    return len(op.path) + len(value) + OP_BYTES


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]

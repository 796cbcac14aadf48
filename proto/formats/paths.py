"""Defines where nodes are below a cluster's ledgers root, and which of them are ledgers.

    short   id as 10 digits, split 2-4-4:       12345 -> 00/0001/L2345
    long    id as 19 digits, split 3-4-4-4-4:   2^31-1 -> 000/0000/0021/4748/L3647
    flat    `L` and at least 10 digits:         12345 -> L0000012345

The hierarchical layout uses short paths for ids below 2^31 - 1, and long paths from there on. **A
node is a ledger if its path is that of a ledger id under the cluster's layout**; everything else
under the root is foreign and ignored.

Rollbook's own trees are never under this root. They have a root of their own beside it (`own_root`).
"""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from rollbook.proto.errors import InvalidRequest
from rollbook.proto.formats.layout import Layout
from rollbook.proto.ids import LEDGER_ID_MAX, LedgerId

DEFAULT_ROOT: Final = "/ledgers"

LAYOUT: Final = "LAYOUT"
INSTANCE_ID: Final = "INSTANCEID"
AVAILABLE: Final = "available"
READ_ONLY: Final = "available/readonly"
COOKIES: Final = "cookies"
SHORT_IDS: Final = "idgen"
LONG_IDS: Final = "idgen-long"
# The prefix of the ephemeral sequential nodes from which ids are drawn; the number is the id or its low half.
ID_PREFIX: Final = "ID-"
# A folder of Rollbook's own tree, with a record for each bookie besides its cookie.
OWN_BOOKIES: Final = "bookies"
# A folder of Rollbook's own tree, with the lifecycle of each bookie.
LIFECYCLE: Final = "lifecycle"
# The prefix of nodes under LONG_IDS; the number is the high half of the ids below the node.
HIGH_PREFIX: Final = "HOB-"

FIRST_LONG_ID: Final = LedgerId(2**31 - 1)

# How the digits of an id are split into names; the last name is that of the leaf.
_SHORT: Final = (2, 4, 4)
_LONG: Final = (3, 4, 4, 4, 4)
_FLAT: Final = (10,)
_DIGITS_MAX: Final = 19

Split = tuple[int, ...]


def own_root(ledgers_root: str) -> str:
    """Returns the root of Rollbook's own trees. It is beside the ledgers root, so each cluster in a
    store has its own.
    """
    parent, _, name = ledgers_root.rpartition("/")
    suffix = "" if name == "ledgers" else f"-{name}"
    return f"{parent}/rollbook{suffix}"


def ledger_path(layout: Layout, ledger_id: LedgerId) -> str:
    """Returns a ledger's path below the ledgers root. Raises `InvalidRequest` if the layout has no
    place for it.
    """
    split = _split_of(layout, ledger_id)
    digits = f"{ledger_id:0{sum(split)}d}"
    if layout is Layout.FLAT:
        return f"L{digits}"
    if len(digits) > sum(split):
        raise InvalidRequest(f"the {layout.value} layout has no place for ledger {ledger_id}")
    return f"{directory_path(split, digits[: -split[-1]])}/L{digits[-split[-1] :]}"


def ledger_of_path(layout: Layout, path: str) -> LedgerId | None:
    """Returns the ledger at a path below the ledgers root, or None if the node is no ledger."""
    digits = path.replace("/", "").replace("L", "")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        return None
    ledger_id = LedgerId(int(digits))
    split = _split_of(layout, ledger_id)
    if not _is_at_home(layout, split, digits) or ledger_path(layout, ledger_id) != path:
        return None
    return ledger_id


# --- Walking all ledgers ----------------------------------------------------------------------


def splits_of(layout: Layout) -> tuple[Split, ...]:
    """Returns the trees to walk. The tree with the lower ids comes first."""
    if layout is Layout.FLAT:
        return (_FLAT,)
    if layout is Layout.HIERARCHICAL:
        return (_SHORT, _LONG)
    return (_LONG,) if layout is Layout.LONG_HIERARCHICAL else (_SHORT,)


def directory_path(split: Split, digits: str) -> str:
    """Returns the directory of the ids that start with these digits. It is empty for the root itself."""
    names, start = [], 0
    for width in split:
        if start >= len(digits):
            break
        names.append(digits[start : start + width])
        start += width
    return "/".join(names)


def children_of(layout: Layout, split: Split, digits: str, names: Iterable[str]) -> list[str]:
    """Returns the digits of a directory's nodes, lowest ids first. Foreign names are left out."""
    depth = list(accumulate(split, initial=0)).index(len(digits))
    is_leaf = depth == len(split) - 1
    width = f"{split[depth]},{_DIGITS_MAX}" if split == _FLAT else f"{split[depth]}"
    shape = re.compile(f"{'L' if is_leaf else ''}([0-9]{{{width}}})")
    found = sorted([digits + match[1] for match in map(shape.fullmatch, names) if match])
    if split == _FLAT:
        found.sort(key=len)
        doubtful = found
    # The ids have one width: if the lowest and the highest belong here, so do all ids between them.
    else:
        doubtful = [*found[:1], *found[-1:]]
    if is_leaf and not all(_is_at_home(layout, split, each) for each in doubtful):
        found = [each for each in found if _is_at_home(layout, split, each)]
    return found


def is_whole_id(split: Split, digits: str) -> bool:
    return len(digits) >= sum(split)


def highest_id(split: Split, digits: str) -> int:
    """Returns the highest id that starts with these digits."""
    return int(digits.ljust(sum(split), "9"))


def _split_of(layout: Layout, ledger_id: LedgerId) -> Split:
    splits = splits_of(layout)
    return splits[-1 if ledger_id >= FIRST_LONG_ID else 0]


def _is_at_home(layout: Layout, split: Split, digits: str) -> bool:
    """Returns whether the ledger with these digits would be in this tree, under this name."""
    ledger_id = LedgerId(int(digits))
    is_canonical = len(digits) == sum(split) or (split == _FLAT and digits[0] != "0")
    return is_canonical and ledger_id <= LEDGER_ID_MAX and _split_of(layout, ledger_id) == split

"""Paths of ledgers, and which paths are ledgers."""

import random
from itertools import product

import pytest

from rollbook.proto.errors import InvalidRequest
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.paths import (
    FIRST_LONG_ID,
    children_of,
    directory_path,
    highest_id,
    is_whole_id,
    ledger_of_path,
    ledger_path,
    own_root,
    splits_of,
)
from rollbook.proto.ids import LEDGER_ID_MAX, LedgerId
from tests.golden import metadata as golden

EDGES = [0, 1, 9999, 10000, 2**31 - 2, 2**31 - 1, 2**31, 10**10 - 1, 10**10, 2**32, 2**63 - 1]


@pytest.mark.parametrize(("ledger_id", "path"), golden.LEDGER_PATHS.items())
def test_paths_of_the_default_layout(ledger_id: int, path: str) -> None:
    assert ledger_path(Layout.HIERARCHICAL, LedgerId(ledger_id)) == path
    assert ledger_of_path(Layout.HIERARCHICAL, path) == ledger_id


def test_paths_of_the_other_layouts() -> None:
    paths = [ledger_path(layout, LedgerId(12345)) for layout in Layout]
    assert paths == [
        "00/0001/L2345",
        "000/0000/0000/0001/L2345",
        "00/0001/L2345",
        "L0000012345",
    ]


@pytest.mark.parametrize("layout", Layout)
def test_ledger_id_survives_round_trip_through_path(layout: Layout) -> None:
    chance = random.Random(1)
    some = [chance.randrange(2 ** chance.randrange(1, 64)) for _ in range(500)]
    for ledger_id in map(LedgerId, EDGES + some):
        if layout is Layout.LEGACY_HIERARCHICAL and ledger_id >= 10**10:
            with pytest.raises(InvalidRequest):
                ledger_path(layout, ledger_id)
            continue
        assert ledger_of_path(layout, ledger_path(layout, ledger_id)) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "LAYOUT",
        "INSTANCEID",
        "available",
        "available/b:1",
        "cookies/b:1",
        "idgen",
        "idgen/ID-0000000001",
        "ID-0000000001",
        "underreplication/ledgers/0000/0000",
        "00",
        "00/0001",
        "00/0001/2345",
        "00/0001/L234",
        "0/00001/L2345",
        "L000001/2345",
        # A long path with a short id, which is looked up in the other tree.
        "000/0000/0000/0001/L2345",
        "21/4748/L3647",  # A short path with a long id.
        "999/9999/9999/9999/L9999",
        "L0000012345",
        "\u0660\u0660/0001/L2345",
        "",
        "L",
        "//L",
    ],
)
def test_path_that_is_not_a_ledger_is_ignored(path: str) -> None:
    assert ledger_of_path(Layout.HIERARCHICAL, path) is None


def test_layout_ignores_paths_of_other_layouts() -> None:
    seen = {
        (mine, theirs)
        for mine, theirs in product(Layout, repeat=2)
        if ledger_of_path(mine, ledger_path(theirs, LedgerId(12345))) is not None
    }
    alike = (Layout.HIERARCHICAL, Layout.LEGACY_HIERARCHICAL)
    assert seen == {(one, one) for one in Layout} | {alike, alike[::-1]}


@pytest.mark.parametrize("layout", Layout)
def test_walk_finds_all_ledgers_in_order(layout: Layout) -> None:
    """Walks a tree that is made of paths only and also contains other nodes."""
    chance = random.Random(2)
    some = {chance.randrange(2 ** chance.randrange(1, 34)) for _ in range(300)}
    ids = sorted(map(LedgerId, some | set(EDGES[:7]) | {LEDGER_ID_MAX}))
    if layout is Layout.LEGACY_HIERARCHICAL:
        ids = [each for each in ids if each < 10**10]
    tree: dict[str, set[str]] = {}
    strangers = [
        "LAYOUT",
        "idgen/ID-0000000007",
        "00/x",
        "00/0000/Lx",
        "cookies",
        "0000",
        "L1",
        "L00000000001",
    ]
    # Each of its two trees has paths for ids that belong in the other.
    if layout is Layout.HIERARCHICAL:
        strangers += ["000/0000/0000/0000/L0001", "21/4748/L3647", "999/9999/9999/9999/L9999"]
    for path in [ledger_path(layout, each) for each in ids] + strangers:
        while path:
            path, _, name = path.rpartition("/")
            tree.setdefault(path, set()).add(name)

    found: list[int] = []
    for split in splits_of(layout):
        pending = [""]
        while pending:
            digits = pending.pop()
            children = children_of(
                layout, split, digits, tree.get(directory_path(split, digits), ())
            )
            if children and is_whole_id(split, children[0]):
                found += map(int, children)
            else:
                assert all(highest_id(split, child) >= int(child) for child in children)
                pending += reversed(children)
    assert found == ids


def test_first_long_id_matches_java() -> None:
    assert FIRST_LONG_ID == 2147483647


@pytest.mark.parametrize(
    ("root", "own"),
    [
        ("/ledgers", "/rollbook"),
        ("/prod/ledgers", "/prod/rollbook"),
        ("/bk", "/rollbook-bk"),
        ("/a/b", "/a/rollbook-b"),
    ],
)
def test_own_root_is_beside_ledgers_root(root: str, own: str) -> None:
    assert own_root(root) == own

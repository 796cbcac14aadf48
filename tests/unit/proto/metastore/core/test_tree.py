import random
from collections.abc import Sequence

import pytest

from rollbook.proto.errors import (
    InvalidRequest,
    MetadataConflict,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    RollbookError,
    Superseded,
)
from rollbook.proto.metastore.core.tree import Applied, Tree
from rollbook.proto.ports import (
    Check,
    Create,
    CreateMode,
    Delete,
    NodeStat,
    Op,
    Set,
    WatchEvent,
    WatchEventKind,
)

S1, S2 = 101, 102
EPHEMERAL, SEQUENTIAL = CreateMode.EPHEMERAL, CreateMode.PERSISTENT_SEQUENTIAL


class Story:
    """A tree whose transactions are numbered in order."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.txn = 0

    def do(self, *ops: Op, session: int = S1) -> Applied:
        applied = self.tree.apply(ops, session, self.txn + 1, now_ms=1000 + self.txn)
        self.txn += 1
        return applied

    def make(self, path: str, mode: CreateMode = CreateMode.PERSISTENT) -> str:
        made = self.do(Create(path, b"", mode)).results[0]
        assert isinstance(made, str)
        return made

    def stat(self, path: str) -> NodeStat:
        node = self.tree.get(path)
        assert node is not None
        return node.stat


@pytest.fixture
def story() -> Story:
    return Story()


def test_stat_of_a_node_follows_its_changes(story: Story) -> None:
    story.do(Create("/a", b"one"))
    assert story.stat("/a") == NodeStat(0, 1, 1, 1000, 1000, 0, 0)
    (stat,) = story.do(Set("/a", b"two", version=0)).results
    assert stat == story.stat("/a") == NodeStat(1, 1, 2, 1000, 1001, 0, 0)
    story.do(Delete("/a", version=1))
    assert story.tree.get("/a") is None
    story.do(Create("/a"))
    assert (story.stat("/a").version, story.stat("/a").created_txn) == (0, 4)


def test_children_do_not_change_version_and_times_of_parent(story: Story) -> None:
    story.make("/a")
    before = story.stat("/a")
    story.make("/a/c")
    story.make("/a/b")
    assert story.tree.children("/a") == ["b", "c"]
    story.do(Delete("/a/c"))
    after = story.stat("/a")
    assert after.children == 1
    assert (after.version, after.modified_txn) == (before.version, before.modified_txn)


def test_sequential_names_count_all_children_ever_created(story: Story) -> None:
    """MS4: so no number is used twice."""
    story.make("/a")
    assert story.make("/a/x-", SEQUENTIAL) == "/a/x-0000000000"
    story.make("/a/plain")
    assert story.make("/a/y-", SEQUENTIAL) == "/a/y-0000000002"
    story.do(Delete("/a/y-0000000002"))
    story.do(Set("/a", b"new"))
    with pytest.raises(NodeExists):
        story.make("/a/plain")
    assert story.make("/a/x-", CreateMode.EPHEMERAL_SEQUENTIAL) == "/a/x-0000000003"


def test_taken_sequential_name_is_skipped_after_another_create(story: Story) -> None:
    story.make("/x-0000000001")
    for _ in range(2):
        with pytest.raises(NodeExists):
            story.make("/x-", SEQUENTIAL)
    story.make("/other")
    assert story.make("/x-", SEQUENTIAL) == "/x-0000000002"


def test_recreated_parent_counts_from_zero(story: Story) -> None:
    story.make("/a")
    story.make("/a/b")
    story.do(Delete("/a/b"), Delete("/a"), Create("/a"))
    assert story.make("/a/x", SEQUENTIAL) == "/a/x0000000000"


@pytest.mark.parametrize(
    ("op", "refusal"),
    [
        (Create("/"), NodeExists),
        (Create("/no/child"), NoSuchNode),
        (Create("/full"), NodeExists),
        (Create("/ephemeral/child"), InvalidRequest),
        (Create("/ephemeral/child", b"", SEQUENTIAL), InvalidRequest),
        (Set("/no", b""), NoSuchNode),
        (Set("/full", b"", version=1), MetadataConflict),
        (Delete("/no/child"), NoSuchNode),
        (Delete("/full", version=1), MetadataConflict),
        (Delete("/full"), NodeNotEmpty),
        (Check("/no"), NoSuchNode),
        (Check("/full", version=1), MetadataConflict),
    ],
)
def test_refused_transaction_changes_nothing(
    story: Story, op: Op, refusal: type[RollbookError]
) -> None:
    story.do(Create("/full"), Create("/full/child"), Create("/ephemeral", b"", EPHEMERAL))
    before = dict(story.tree.rows())
    with pytest.raises(refusal) as caught:
        story.do(Check("/"), Set("/", b"undone"), op)
    assert caught.value.ids["op"] == 2
    assert dict(story.tree.rows()) == before


def test_transaction_sees_its_own_operations(story: Story) -> None:
    applied = story.do(
        Create("/a"),
        Create("/a/x", b"", SEQUENTIAL),
        Delete("/a/x0000000000"),
        Create("/a/x", b"", SEQUENTIAL),
        Set("/a", b"1", version=0),
        Set("/a", b"2", version=1),
        Check("/a", version=2),
    )
    made, sequential, _, again, first, second, checked = applied.results
    assert (made, sequential, again, checked) == ("/a", "/a/x0000000000", "/a/x0000000001", None)
    assert isinstance(first, NodeStat)
    assert (first.version, first.modified_txn, first.children) == (1, 1, 1)
    assert second == story.stat("/a")


def test_value_of_root_can_be_set(story: Story) -> None:
    story.do(Set("/", b"value", version=0))
    assert story.stat("/").version == 1


def test_end_of_session_removes_only_its_own_nodes(story: Story) -> None:
    story.make("/a")
    story.do(Create("/b", b"", EPHEMERAL), Create("/a/c", b"", EPHEMERAL), session=S1)
    story.do(Create("/d", b"", EPHEMERAL), session=S2)
    assert story.stat("/b").owner == S1
    story.do(Set("/b", b"by another"), session=S2)
    story.do(Delete("/d"), session=S1)
    assert story.tree.ephemerals(S1) == ["/a/c", "/b"]
    applied = story.tree.end_session(S1, txn=9, now_ms=0)
    assert [e.path for e in applied.events if e.kind is WatchEventKind.DELETED] == ["/a/c", "/b"]
    assert applied.rows["/b"] is None
    assert (story.tree.ephemerals(S1), story.tree.ephemerals(S2)) == ([], [])
    assert story.tree.children("/") == ["a"]


def test_events_follow_operations_with_node_before_parent(story: Story) -> None:
    applied = story.do(Create("/a"), Create("/a/b"), Set("/a", b""), Delete("/a/b"), Check("/a"))
    assert applied.events == [
        WatchEvent(WatchEventKind.CREATED, "/a"),
        WatchEvent(WatchEventKind.CHILDREN, "/"),
        WatchEvent(WatchEventKind.CREATED, "/a/b"),
        WatchEvent(WatchEventKind.CHILDREN, "/a"),
        WatchEvent(WatchEventKind.CHANGED, "/a"),
        WatchEvent(WatchEventKind.DELETED, "/a/b"),
        WatchEvent(WatchEventKind.CHILDREN, "/a"),
    ]


def random_op(chance: random.Random) -> Op:
    path = "/" + "/".join(chance.choices("ab", k=chance.choice((1, 1, 2, 2, 3))))
    version = chance.choice((None, None, None, 0))
    match chance.randrange(5):
        case 0 | 1:
            return Create(path, b"", chance.choice(tuple(CreateMode)))
        case 2:
            return Set(path, chance.randbytes(2), version)
        case 3:
            return Delete(path, version)
        case _:
            return Check(path, version)


@pytest.mark.parametrize("seed", range(30))
def test_rows_of_transactions_rebuild_the_tree(seed: int) -> None:
    """Refused transactions change nothing, and the reported `rows` rebuild the same tree."""
    chance, story, kept = random.Random(seed), Story(), dict(Tree().rows())
    applied_or_refused = [0, 0]
    for _ in range(200):
        ops: Sequence[Op] = [random_op(chance) for _ in range(chance.choice((1, 1, 2, 3)))]
        if chance.random() < 0.05:
            applied = story.tree.end_session(chance.choice((S1, S2)), story.txn + 1, 0)
        else:
            try:
                applied = story.do(*ops, session=chance.choice((S1, S2)))
            except (NoSuchNode, Superseded, InvalidRequest):
                applied_or_refused[1] += 1
                assert dict(story.tree.rows()) == kept
                continue
        applied_or_refused[0] += 1
        for path, row in applied.rows.items():
            if row is None:
                # A node created and removed within one transaction was never kept.
                kept.pop(path, None)
            else:
                kept[path] = row
        assert dict(story.tree.rows()) == kept
    assert min(applied_or_refused) > 20
    rebuilt = Tree()
    shuffled = list(kept.items())
    chance.shuffle(shuffled)
    rebuilt.load(shuffled)
    for path, row in kept.items():
        assert rebuilt.get(path) == story.tree.get(path)
        assert rebuilt.children(path) == story.tree.children(path)
        assert path == "/" or row.owner == 0 or path in rebuilt.ephemerals(row.owner)
    assert rebuilt.ephemerals(S1) == story.tree.ephemerals(S1)

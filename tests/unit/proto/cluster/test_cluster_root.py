"""A cluster is created once, can be opened afterwards, and is never mistaken for another."""

import ast
import asyncio
import random
import shlex
from dataclasses import replace

import pytest

from rollbook.proto.cluster.cluster_root import (
    Cluster,
    ensure_layout,
    ensure_own_root,
    initialise,
    open_cluster,
    require_cluster,
)
from rollbook.proto.cluster.uncertain_writes import ensure_path
from rollbook.proto.errors import (
    BadConfig,
    BadMetadata,
    ClusterExists,
    MetadataUnavailable,
    NoSuchCluster,
    RollbookError,
    WrongCluster,
)
from rollbook.proto.formats.layout import Layout, pack_layout, unpack_layout
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import MetadataStore
from tests.golden import metadata as golden
from tests.messages import raises_message
from tests.unit.proto.cluster.faulty import Fate, FaultyStore

ROOT = "/prod/ledgers"
OTHER_ID = golden.INSTANCE_ID.decode()


async def make(store: MetadataStore, root: str = ROOT, seed: int = 1) -> Cluster:
    return await initialise(store, root, random.Random(seed))


async def test_new_cluster_has_nodes_that_java_creates(store: FaultyStore) -> None:
    cluster = await make(store)
    assert await store.children(ROOT) == ["INSTANCEID", "LAYOUT", "available", "cookies"]
    assert await store.children(f"{ROOT}/available") == ["readonly"]
    values = {
        name: node.value
        for name in ("LAYOUT", "INSTANCEID")
        if (node := await store.get(f"{ROOT}/{name}"))
    }
    assert values["LAYOUT"] == golden.LAYOUT_HIERARCHICAL
    assert values["INSTANCEID"].decode() == cluster.instance_id
    own = await store.get("/prod/rollbook")
    assert own is not None
    assert own.value == values["INSTANCEID"]
    assert await open_cluster(store, ROOT) == cluster


async def test_each_cluster_gets_its_own_instance_id(store: FaultyStore) -> None:
    one, other = await make(store, "/a", seed=1), await make(store, "/b", seed=2)
    assert one.instance_id != other.instance_id
    assert one.instance_id is not None
    assert one.instance_id[14] == "4"  # It declares itself a random UUID (version 4).
    assert await store.children("/") == ["a", "b", "rollbook-a", "rollbook-b"]


async def test_cluster_can_be_created_with_long_layout(store: FaultyStore) -> None:
    await initialise(store, ROOT, random.Random(1), Layout.LONG_HIERARCHICAL)
    assert (await open_cluster(store, ROOT)).layout is Layout.LONG_HIERARCHICAL


@pytest.mark.parametrize("fates", [(Fate.ANSWER_LOST,), (Fate.REQUEST_LOST, Fate.ANSWER_LOST)])
async def test_cluster_is_created_once_despite_lost_requests_and_replies(
    store: FaultyStore, fates: tuple[Fate, ...]
) -> None:
    """LR1."""
    await store.create("/prod")
    store.fates.extend(fates)
    cluster = await make(store)
    assert await open_cluster(store, ROOT) == cluster


async def test_one_of_two_concurrent_creations_of_a_cluster_succeeds(
    store: FaultyStore, rival: MetadataStore
) -> None:
    made = await asyncio.gather(make(store, seed=1), make(rival, seed=2), return_exceptions=True)
    winners = [each for each in made if isinstance(each, Cluster)]
    assert winners == [await open_cluster(store, ROOT)]
    assert sum(isinstance(each, RollbookError) for each in made) == 1


async def test_cluster_created_by_rival_after_lost_request_is_kept(
    store: FaultyStore, rival: MetadataStore
) -> None:
    await store.create("/prod")

    async def rival_comes() -> None:
        await make(rival, seed=2)

    store.between = rival_comes
    store.fates.append(Fate.REQUEST_LOST)
    with pytest.raises(ClusterExists):
        await make(store, seed=1)


async def test_existing_cluster_is_left_unchanged(store: FaultyStore) -> None:
    cluster = await make(store)
    with pytest.raises(ClusterExists):
        await make(store, seed=2)
    assert await open_cluster(store, ROOT) == cluster


async def test_cluster_can_be_created_in_empty_root(store: FaultyStore) -> None:
    await store.create("/prod")
    await store.create(ROOT)
    await make(store)


async def test_leftover_own_root_of_another_cluster_blocks_creation(store: FaultyStore) -> None:
    await store.create("/prod")
    await store.create("/prod/rollbook", OTHER_ID.encode())
    with pytest.raises(ClusterExists) as caught:
        await make(store)
    assert caught.value.ids["path"] == "/prod/rollbook"


@pytest.mark.parametrize("root", ["/rollbook", "/rollbook/x", "/ledgers/cookies", "/ledgers/a/b"])
async def test_a_root_inside_another_cluster_is_refused(store: FaultyStore, root: str) -> None:
    await make(store, "/ledgers")
    store.writes = 0
    with raises_message(ClusterExists):
        await make(store, root, seed=2)
    assert store.writes == 0


async def test_node_that_is_not_a_cluster_root_is_refused(store: FaultyStore) -> None:
    await make(store)
    for path in ("/prod", "/prod/rollbook"):
        with pytest.raises(NoSuchCluster):
            await open_cluster(store, path)


async def test_opening_during_creation_finds_actual_layout_or_no_cluster(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """Whichever read the creation happens before, the opened cluster never has a wrong layout."""
    for read in range(1, 9):
        root = f"/c{read}/ledgers"
        await rival.create(f"/c{read}")
        await rival.create(root)

        async def rival_makes(root: str = root, seed: int = read) -> None:
            await initialise(rival, root, random.Random(seed), Layout.LONG_HIERARCHICAL)

        store.reads = 0
        store.before_read = {read: [rival_makes]}
        try:
            assert (await open_cluster(store, root)).layout is Layout.LONG_HIERARCHICAL
        except NoSuchCluster:
            pass  # The cluster was opened before it was created.


async def test_opening_missing_cluster_raises_no_such_cluster(store: FaultyStore) -> None:
    with pytest.raises(NoSuchCluster):
        await open_cluster(store, ROOT)


async def test_next_steps_of_cluster_errors_are_valid_commands(
    store: FaultyStore,
) -> None:
    url = MetadataUrl.parse("zk+hierarchical://zk1;zk2/prod/ledgers")
    with pytest.raises(NoSuchCluster) as refused:
        await open_cluster(store, url.ledgers_root, url=url)
    words = shlex.split(refused.value.next_step)
    assert MetadataUrl.parse(words[-1]) == url
    await initialise(store, url.ledgers_root, random.Random(1), url=url)
    with pytest.raises(ClusterExists) as exists:
        await initialise(store, url.ledgers_root, random.Random(2), url=url)
    assert shlex.split(exists.value.next_step) == ["rollbook", "cluster", "info", *words[-2:]]


async def test_old_cluster_without_layout_and_id_opens_with_defaults(store: FaultyStore) -> None:
    await store.create("/bk")
    await store.create("/bk/available")
    cluster = await open_cluster(store, "/bk")
    assert (cluster.layout, cluster.instance_id) == (Layout.HIERARCHICAL, None)
    await ensure_own_root(store, cluster)
    await ensure_own_root(store, cluster)
    assert await store.children("/") == ["bk", "rollbook-bk"]


async def test_cluster_of_java_gets_own_root_with_its_instance_id(
    store: FaultyStore, rival: MetadataStore
) -> None:
    for path, value in (
        ("/ledgers", b""),
        ("/ledgers/available", b""),
        ("/ledgers/LAYOUT", pack_layout(Layout.LONG_HIERARCHICAL)),
        ("/ledgers/INSTANCEID", golden.INSTANCE_ID),
    ):
        await store.create(path, value)
    cluster = await open_cluster(store, "/ledgers", instance_id=OTHER_ID)
    await asyncio.gather(ensure_own_root(store, cluster), ensure_own_root(rival, cluster))
    node = await store.get("/rollbook")
    assert node is not None
    assert node.value == golden.INSTANCE_ID


async def test_opening_cluster_with_wrong_instance_id_is_refused(store: FaultyStore) -> None:
    await make(store)
    with pytest.raises(WrongCluster):
        await open_cluster(store, ROOT, instance_id=OTHER_ID)


async def test_own_root_of_another_cluster_is_refused(store: FaultyStore) -> None:
    cluster = await make(store)
    await store.set(cluster.own_root, OTHER_ID.encode())
    with pytest.raises(WrongCluster):
        await open_cluster(store, ROOT)
    with pytest.raises(WrongCluster):
        await ensure_own_root(store, cluster)


def asking_for(layout: str) -> MetadataUrl:
    return MetadataUrl.parse(f"zk+{layout}://zk1{ROOT}")


async def test_layout_that_contradicts_url_is_refused(store: FaultyStore) -> None:
    await make(store)
    for layout in ("flat", "longhierarchical"):
        with pytest.raises(BadConfig, match=f"says {layout}, LAYOUT says hierarchical"):
            await open_cluster(store, ROOT, url=asking_for(layout))
    await open_cluster(store, ROOT, url=asking_for("hierarchical"))


async def test_layout_from_url_is_stored_if_layout_node_is_missing(
    store: FaultyStore,
) -> None:
    """BookKeeper does the same: its clients would look for ledgers in the trees of that layout."""
    await make(store)
    await store.delete(f"{ROOT}/LAYOUT")
    cluster = await open_cluster(store, ROOT, url=asking_for("longhierarchical"))
    assert cluster.layout is Layout.LONG_HIERARCHICAL
    await require_cluster(store, cluster)
    await ensure_layout(store, cluster)
    assert (await open_cluster(store, ROOT)).layout is Layout.LONG_HIERARCHICAL
    with raises_message(BadConfig):
        await open_cluster(store, ROOT, url=asking_for("hierarchical"))


async def test_second_of_two_different_assumed_layouts_is_refused(
    store: FaultyStore, rival: MetadataStore
) -> None:
    """Bookies would not find ledgers of the other layout and would take them for deleted."""
    await make(store)
    await store.delete(f"{ROOT}/LAYOUT")
    late = await open_cluster(store, ROOT)
    quick = await open_cluster(rival, ROOT, url=asking_for("longhierarchical"))
    await ensure_layout(rival, quick)
    await ensure_layout(rival, quick)
    with raises_message(BadConfig) as refused:
        await ensure_layout(store, late)
    assert refused.value.ids["path"] == f"{ROOT}/LAYOUT"
    assert refused.value.next_step
    assert (await open_cluster(store, ROOT)).layout is Layout.LONG_HIERARCHICAL


@pytest.mark.parametrize("layout", list(Layout))
async def test_concurrently_written_layout_must_match(
    store: FaultyStore, rival: MetadataStore, layout: Layout
) -> None:
    await make(store)
    await store.delete(f"{ROOT}/LAYOUT")
    cluster = await open_cluster(store, ROOT)

    async def rival_writes() -> None:
        await rival.create(f"{ROOT}/LAYOUT", pack_layout(layout))

    store.writes = 0
    store.before_write = {1: [rival_writes]}
    if layout is cluster.layout:
        await ensure_layout(store, cluster)
    else:
        with raises_message(BadConfig):
            await ensure_layout(store, cluster)


async def test_missing_layout_is_not_replaced_by_flat(store: FaultyStore) -> None:
    await make(store)
    await store.delete(f"{ROOT}/LAYOUT")
    with raises_message(BadConfig) as refused:
        await open_cluster(store, ROOT, url=asking_for("flat"))
    assert "zk+longhierarchical://" in refused.value.next_step


@pytest.mark.parametrize(
    ("ledger", "layout", "others"),
    [
        ("00/0000/L0007", "hierarchical", ("longhierarchical", "flat")),
        ("000/0000/0000/0000/L0007", "longhierarchical", ("null", "hierarchical", "flat")),
        ("L0000000007", "flat", ("null", "hierarchical", "longhierarchical")),
    ],
)
async def test_lost_layout_is_replaced_only_by_one_that_finds_all_ledgers(
    store: FaultyStore, ledger: str, layout: str, others: tuple[str, ...]
) -> None:
    """With another layout, bookies would take every ledger for deleted."""
    cluster = await make(store)
    path = ROOT
    for part in ledger.split("/"):
        path += f"/{part}"
        await store.create(path)
    await store.delete(f"{ROOT}/LAYOUT")
    for other in others:
        with raises_message(BadConfig) as refused:
            await open_cluster(store, ROOT, url=asking_for(other))
        assert f"zk+{layout}://" in refused.value.next_step
        with raises_message(BadConfig):
            await require_cluster(store, replace(cluster, url=asking_for(other)))
    found = await open_cluster(store, ROOT, url=asking_for(layout))
    await ensure_layout(store, found)
    assert (await open_cluster(store, ROOT)).layout is Layout(layout)


@pytest.mark.parametrize("below", [(), ("00/0000/L0007",)])
async def test_high_ledger_of_legacy_layout_is_recognised_without_layout_node(
    store: FaultyStore, below: tuple[str, ...]
) -> None:
    """Only createLedgerAdv creates such a ledger: other layouts keep ids from 2^31 - 1 on in the
    long tree.
    """
    cluster = await make(store)
    for ledger in ("21/4748/L3648", *below):
        await ensure_path(store, f"{ROOT}/{ledger}")
    await store.delete(f"{ROOT}/LAYOUT")
    for layout in ("null", "hierarchical", "longhierarchical"):
        with raises_message(BadConfig) as refused:
            await open_cluster(store, ROOT, url=asking_for(layout))
        about, _, value = refused.value.next_step.rpartition(" $")
        assert about.endswith(f"zkCli.sh -server zk1:2181 create {ROOT}/LAYOUT")
        written = unpack_layout(ast.literal_eval(value).encode())  # Bash reads it the same way.
        assert written is Layout.LEGACY_HIERARCHICAL
        with raises_message(BadConfig):
            await require_cluster(store, cluster)


async def test_high_ledgers_fit_both_hierarchical_layouts(store: FaultyStore) -> None:
    await make(store)
    for path in (
        "000",
        "000/0000",
        "000/0000/0021",
        "000/0000/0021/4748",
        "000/0000/0021/4748/L3647",
    ):
        await store.create(f"{ROOT}/{path}")
    await store.delete(f"{ROOT}/LAYOUT")
    for layout in ("hierarchical", "longhierarchical"):
        cluster = await open_cluster(store, ROOT, url=asking_for(layout))
        assert cluster.layout is Layout(layout)


async def test_damaged_layout_or_instance_id_is_refused(store: FaultyStore) -> None:
    await make(store)
    for name in ("LAYOUT", "INSTANCEID"):
        await store.set(f"{ROOT}/{name}", b"?")
        with pytest.raises(BadMetadata):
            await open_cluster(store, ROOT)


WHERE = MetadataUrl.parse(f"zk://zk1,zk2{ROOT}")
ZKCLI = "zkCli.sh -server zk1:2181,zk2:2181"


async def test_next_step_for_unknown_layout_repairs_cluster(store: FaultyStore) -> None:
    cluster = await make(store)
    await store.set(f"{ROOT}/LAYOUT", b"2\norg.example.Unheard:1")
    with pytest.raises(BadMetadata) as refused:
        await open_cluster(store, ROOT, url=WHERE)
    assert refused.value.ids["path"] == f"{ROOT}/LAYOUT"
    about, _, command = refused.value.next_step.rpartition(": ")
    assert "made with the default layout" in about
    assert command == f"{ZKCLI} delete {ROOT}/LAYOUT"
    await store.delete(command.split()[-1])
    again = await open_cluster(store, ROOT, url=WHERE)
    assert (again, again.url) == (cluster, WHERE)


async def test_next_step_for_bad_instance_id_repairs_cluster(store: FaultyStore) -> None:
    cluster = await make(store)
    path = f"{ROOT}/INSTANCEID"
    await store.set(path, b"?")
    with pytest.raises(BadMetadata) as refused:
        await open_cluster(store, ROOT, url=WHERE)
    assert refused.value.ids["path"] == path
    assert refused.value.next_step.endswith(f": {ZKCLI} set {path} {cluster.instance_id}")

    await store.delete(path)
    with pytest.raises(WrongCluster) as gone:
        await open_cluster(store, ROOT, url=WHERE)
    assert gone.value.next_step.endswith(f": {ZKCLI} create {path} {cluster.instance_id}")

    *_, node, instance_id = gone.value.next_step.split()
    await store.create(node, instance_id.encode())
    assert await open_cluster(store, ROOT) == cluster


async def test_next_step_for_instance_id_without_own_root(store: FaultyStore) -> None:
    await make(store)
    await store.set(f"{ROOT}/INSTANCEID", b"?")
    await store.delete("/prod/rollbook")
    with pytest.raises(BadMetadata) as refused:
        await open_cluster(store, ROOT, instance_id=OTHER_ID)
    assert refused.value.next_step.endswith(f": zkCli.sh set {ROOT}/INSTANCEID {OTHER_ID}")
    with pytest.raises(BadMetadata) as refused:
        await open_cluster(store, ROOT)
    assert refused.value.next_step.endswith("UUID, with the UUID that cookies of bookies name")


async def test_unavailable_store_is_not_reported_as_missing_cluster(store: FaultyStore) -> None:
    await make(store)
    store.read_fates.append(Fate.NOT_SENT)
    with pytest.raises(MetadataUnavailable):
        await open_cluster(store, ROOT)

"""Creates a cluster, opens it, and checks that the store still holds the expected cluster.

<root>                         the ledgers root, by default /ledgers; it has BookKeeper's layout
<root>/LAYOUT                  how ledger ids become paths
<root>/INSTANCEID              the cluster's id; clusters made by an old BookKeeper lack it
<root>/available[/readonly]    registrations of bookies
<root>/cookies                 which bookies belong to the cluster; Java's auditor needs it
<own root>                     the root of our own trees, beside <root>; it holds the instance id
"""

import shlex
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.cluster.ledger_nodes import LedgerWalk
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    ensure_path,
    read_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    BadConfig,
    BadMetadata,
    ClusterExists,
    NodeExists,
    NoSuchCluster,
    NoSuchNode,
    WrongCluster,
)
from rollbook.proto.formats import paths
from rollbook.proto.formats.layout import (
    Layout,
    is_instance_id,
    pack_instance_id,
    pack_layout,
    unpack_instance_id,
    unpack_layout,
)
from rollbook.proto.ids import LedgerId
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Check, Create, MetadataStore, Node, Randomness

# The layouts whose ledgers are looked for, and from which id on. Below 2^31 - 1 the legacy layout
# has the same paths as the hierarchical one.
_WALKS: Final = (
    (Layout.LEGACY_HIERARCHICAL, paths.FIRST_LONG_ID),
    (Layout.HIERARCHICAL, LedgerId(0)),
    (Layout.LONG_HIERARCHICAL, LedgerId(0)),
    (Layout.FLAT, LedgerId(0)),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    root: str
    layout: Layout
    instance_id: str | None  # None if the cluster is older than instance ids.
    # It is only used in error messages.
    url: MetadataUrl | None = field(default=None, compare=False)

    @property
    def own_root(self) -> str:
        return paths.own_root(self.root)

    def path(self, name: str) -> str:
        """Returns the path of a node directly below the ledgers root."""
        return f"{self.root}/{name}"


async def initialise(
    store: MetadataStore,
    root: str,
    randomness: Randomness,
    layout: Layout = Layout.HIERARCHICAL,
    url: MetadataUrl | None = None,
) -> Cluster:
    """Creates a cluster in one transaction. Raises `ClusterExists` if the root is not empty.

    `url` is only used in the next steps of errors.
    """
    cluster = Cluster(root, layout, _draw_instance_id(randomness), url)
    assert layout.takes_new_ledgers
    assert cluster.instance_id is not None
    await _refuse_inside_another(store, root)
    if parent := root.rpartition("/")[0]:
        await ensure_path(store, parent)
    root_exists = await _refuse_what_exists(store, cluster, url)
    instance_id = pack_instance_id(cluster.instance_id)
    ops = (
        Check(root) if root_exists else Create(root),
        Create(cluster.path(paths.AVAILABLE)),
        Create(cluster.path(paths.READ_ONLY)),
        Create(cluster.path(paths.COOKIES)),
        Create(cluster.path(paths.LAYOUT), pack_layout(layout)),
        Create(cluster.path(paths.INSTANCE_ID), instance_id),
        Create(cluster.own_root, instance_id),
    )

    async def was_made() -> bool:
        node = await read_surely(store, cluster.path(paths.INSTANCE_ID))
        # Only this call has drawn this instance id.
        return node is not None and node.value == instance_id

    try:
        await transact_surely(store, ops, was_made)
    except (NodeExists, NoSuchNode):  # Another process is creating or removing a cluster right now.
        await _refuse_what_exists(store, cluster, url)
        raise
    return cluster


async def open_cluster(
    store: MetadataStore,
    root: str,
    *,
    instance_id: str | None = None,
    url: MetadataUrl | None = None,
) -> Cluster:
    """Opens the cluster at this root. For missing nodes BookKeeper's defaults are used.

    `instance_id` is the id that the caller expects, from a directory of the cluster. `url` may name
    the layout; it is also shown in next steps of errors, without its options. Raises
    `NoSuchCluster`, `WrongCluster`, `BadConfig`, `BadMetadata`.
    """
    # Every cluster has this folder, and it is created at the latest together with the other nodes.
    if await read_surely(store, f"{root}/{paths.AVAILABLE}") is None:
        raise NoSuchCluster(path=root, next_step=f"rollbook cluster init --metadata {_quoted(url)}")
    cluster = Cluster(
        root,
        await _layout_at(store, root, url),
        await _instance_id_at(store, root, url, instance_id),
        url,
    )
    if instance_id is not None and instance_id != cluster.instance_id:
        raise WrongCluster(
            path=root,
            expected=instance_id,
            found=cluster.instance_id,
            next_step="check the metadata URL",
        )
    await _check_own_root(store, cluster, url)
    return cluster


async def require_cluster(store: MetadataStore, ours: Cluster) -> None:
    """Checks that the store still holds this cluster and the root of its own trees.

    Raises `NoSuchCluster`, `WrongCluster`, `BadConfig`.
    """
    found = await open_cluster(store, ours.root, instance_id=ours.instance_id, url=ours.url)
    if found != ours:
        raise WrongCluster("the cluster's layout has changed", path=ours.root)
    if await read_surely(store, ours.own_root) is None:
        raise WrongCluster("the root of our own trees is gone", path=ours.own_root)


async def ensure_layout(store: MetadataStore, cluster: Cluster) -> None:
    """Writes the assumed layout to LAYOUT if LAYOUT is missing, as BookKeeper does.

    Raises `BadConfig` if another layout was written since the cluster was opened, and `BadMetadata` if LAYOUT
    is unreadable.
    """
    path = cluster.path(paths.LAYOUT)
    node = await read_surely(store, path, fresh=False)
    if node is None:
        layout = pack_layout(cluster.layout)
        try:
            await create_surely(store, path, layout, lambda node: node.value == layout)
        except NodeExists:
            node = await read_surely(store, path)
            if node is None:
                raise  # LAYOUT was written and removed again.
        else:
            return
    # With another layout, other processes would not find the ledgers that this process creates, and
    # bookies would treat them as deleted.
    if (found := _layout_in(node, cluster.root, cluster.url)) is not cluster.layout:
        raise BadConfig(
            f"another layout has been written since: {found.value}, not {cluster.layout.value}",
            path=path,
            next_step="open the cluster again, as a restart does, to use the layout in LAYOUT",
        )


async def ensure_own_root(store: MetadataStore, cluster: Cluster) -> None:
    """Creates the root of Rollbook's own trees, which is missing in a cluster that BookKeeper created."""
    if not await _check_own_root(store, cluster):
        owner = (cluster.instance_id or "").encode()
        try:
            await create_surely(store, cluster.own_root, owner, lambda node: node.value == owner)
        except NodeExists:
            await _check_own_root(store, cluster)


async def _layout_at(store: MetadataStore, root: str, url: MetadataUrl | None) -> Layout:
    node = await read_surely(store, f"{root}/{paths.LAYOUT}", fresh=False)
    if node is not None:
        return _layout_in(node, root, url)
    assumed = _asked_by(url) or Layout.HIERARCHICAL
    await _require_assumable(store, root, url, assumed)
    return assumed


def _asked_by(url: MetadataUrl | None) -> Layout | None:
    return Layout(url.layout.value) if url and url.layout else None


def _layout_in(node: Node, root: str, url: MetadataUrl | None) -> Layout:
    """Returns the layout in the LAYOUT node. Raises `BadMetadata`, and `BadConfig` if the URL names
    another layout.
    """
    asked = _asked_by(url)
    path = f"{root}/{paths.LAYOUT}"
    try:
        found = unpack_layout(node.value)
    except BadMetadata as error:
        remove = zookeeper_command(url, f"delete {path}")
        made_with = asked.value if asked else "default"
        raise BadMetadata(
            error.message,
            path=path,
            # With a wrong layout no ledger would be found, and bookies would treat all ledgers as deleted.
            next_step="check the metadata URL; if it is right, and only in a cluster that was made "
            f"with the {made_with} layout: {remove}",
        ) from None
    if asked not in (None, found):
        raise BadConfig(
            f"the metadata URL says {asked.value}, LAYOUT says {found.value}",
            path=root,
            next_step="write zk://… instead, which uses the layout in LAYOUT",
        )
    return found


async def _require_assumable(
    store: MetadataStore, root: str, url: MetadataUrl | None, assumed: Layout
) -> None:
    """If LAYOUT is missing, checks that every existing ledger is found under the assumed layout,
    since bookies would treat a ledger that is not found as deleted. Raises `BadConfig`.
    """
    is_new = True
    for layout, start in _WALKS:
        # If the lowest ledger is found under the assumed layout, so are all higher ones.
        lowest = await anext(LedgerWalk(store, root, layout, start), None)
        if lowest is None:
            continue
        if paths.ledger_path(layout, lowest) != paths.ledger_path(assumed, lowest):
            step = (
                f"start a bookie with the cluster's layout in the metadata URL, zk+{layout.value}://…; "
                "it writes LAYOUT"
            )
            if layout is Layout.LEGACY_HIERARCHICAL:  # A URL cannot name this layout.
                value = pack_layout(layout).decode().replace("\n", "\\n")
                step = zookeeper_command(url, f"create {root}/{paths.LAYOUT} $'{value}'")
            raise BadConfig(
                f"LAYOUT is missing, and ledger {lowest} is stored at the path of layout {layout.value}, "
                f"not at that of {assumed.value}",
                path=root,
                next_step=f"if it was lost: {step}",
            )
        is_new = False
    if is_new and not assumed.takes_new_ledgers:
        usable = " or ".join(f"zk+{each.value}://…" for each in Layout if each.takes_new_ledgers)
        raise BadConfig(
            f"LAYOUT is missing, and no new cluster gets the {assumed.value} layout",
            path=root,
            next_step=f"write {usable} as the metadata URL",
        )


async def _instance_id_at(
    store: MetadataStore, root: str, url: MetadataUrl | None, known: str | None
) -> str | None:
    path = f"{root}/{paths.INSTANCE_ID}"
    node = await read_surely(store, path, fresh=False)
    try:
        return unpack_instance_id(node.value) if node else None
    except BadMetadata as error:
        if known is None:
            own = await read_surely(store, paths.own_root(root))
            known = own.value.decode() if own and is_instance_id(own.value) else None
        write = zookeeper_command(url, f"set {path} {known or 'UUID'}")
        whose = "" if known else ", with the UUID that cookies of bookies name"
        raise BadMetadata(
            error.message,
            path=path,
            next_step=f"check the metadata URL; if it is right: {write}{whose}",
        ) from None


def _quoted(url: MetadataUrl | None) -> str:
    return shlex.quote(str(url)) if url else "URL"


def zookeeper_command(url: MetadataUrl | None, command: str) -> str:
    """Returns a `zkCli.sh` command for a next step. An embedded store needs none, since it checks
    its own bytes.
    """
    where = f" -server {url.place}" if url and url.backend is Backend.ZOOKEEPER else ""
    return f"zkCli.sh{where} {command}"


async def _check_own_root(
    store: MetadataStore, cluster: Cluster, url: MetadataUrl | None = None
) -> bool:
    """Returns whether the root of our own trees exists. Raises `WrongCluster` if it belongs to
    another cluster.
    """
    node = await read_surely(store, cluster.own_root)
    if node is None:
        return False
    if node.value != (cluster.instance_id or "").encode():
        next_step = "check the metadata URL"
        if cluster.instance_id is None and is_instance_id(node.value):
            path = cluster.path(paths.INSTANCE_ID)
            write = zookeeper_command(url, f"create {path} {node.value.decode()}")
            next_step += f"; if it is right, its {paths.INSTANCE_ID} is gone: {write}"
        raise WrongCluster(
            "the trees beside the ledgers root belong to another cluster",
            path=cluster.own_root,
            expected=cluster.instance_id,
            found=node.value.decode("ascii", "replace"),
            next_step=next_step,
        )
    return True


async def _refuse_inside_another(store: MetadataStore, root: str) -> None:
    """Refuses a root below another ledgers root, since BookKeeper's tools look there, and a root in
    Rollbook's own trees.
    """
    place = root
    while place:
        node = await read_surely(store, place)
        is_taken = node is not None and is_instance_id(node.value)
        if place != root and await read_surely(store, f"{place}/{paths.LAYOUT}") is not None:
            is_taken = True
        if is_taken:
            raise ClusterExists(
                "the new cluster would be inside another cluster",
                path=place,
                next_step="use another root",
            )
        place = place.rpartition("/")[0]


async def _refuse_what_exists(
    store: MetadataStore, cluster: Cluster, url: MetadataUrl | None
) -> bool:
    """Returns whether the root exists and is empty."""
    try:
        found = await children_surely(store, cluster.root)
    except NoSuchNode:
        found = None
    if found:
        raise ClusterExists(
            path=cluster.root, next_step=f"rollbook cluster info --metadata {_quoted(url)}"
        )
    if await read_surely(store, cluster.own_root) is not None:
        raise ClusterExists(
            "trees of an earlier cluster are still there",
            path=cluster.own_root,
            next_step="remove them, or use another root",
        )
    return found is not None


def _draw_instance_id(randomness: Randomness) -> str:
    """Returns a UUID of version 4."""
    bits = randomness.getrandbits(128) & ~(0xF << 76 | 0b11 << 62) | 4 << 76 | 0b10 << 62
    text = f"{bits:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

"""`rollbook cluster`: make a cluster, and look at one."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from rollbook.api.cli.output import examples, output_option, show_facts, show_rows
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster import Cluster, initialise, open_cluster
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.errors import BadConfig, OutcomeUnknown, Unavailable
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.service_info import BookieServiceInfo
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store

T = TypeVar("T")

_LAYOUTS: Final = [layout.value for layout in Layout if layout.takes_new_ledgers]

_TIMEOUT_S: Final = 5.0  # Of one request: somebody waits for the answer.

metadata_option: Final = click.option(
    "--metadata",
    "url",
    metavar="URL",
    required=True,
    envvar="ROLLBOOK_METADATA",
    show_envvar=True,
    help="Where the metadata lies: zk://host,host/ledgers or sqlite:///path.",
)


@click.group(
    epilog=examples(
        "rollbook cluster init --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook cluster init --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster info --metadata zk://zk1,zk2,zk3/ledgers -o json",
    )
)
def group() -> None:
    """Initialise and inspect a cluster."""
    configure_logs(level="error", as_json=False)


@group.command(
    epilog=examples(
        "rollbook cluster init --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook cluster init --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster init --metadata zk://zk1/prod/ledgers --layout longhierarchical",
    )
)
@metadata_option
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    help="Where ledgers lie below the root.  [default: the URL's, else hierarchical]",
)
@output_option
def init(url: str, layout: str | None, output: str) -> None:
    """Make a new cluster; refuses if there is one."""
    place = _parse_url(url)
    hint = _layout_of(place)
    wanted = Layout(layout) if layout else hint or Layout.HIERARCHICAL
    if hint not in (None, wanted) or not wanted.takes_new_ledgers:
        raise BadConfig(
            f"the metadata URL asks for another layout: {place}",
            next_step=f"write zk://… there, or one of --layout {' '.join(_LAYOUTS)} alike",
        )

    async def make(store: MetadataStore) -> Cluster:
        return await initialise(store, place.ledgers_root, random.SystemRandom(), wanted)

    cluster = asyncio.run(_with_store(place, make, create=True))
    facts = _facts(place, cluster)
    show_facts(facts, output)


@group.command(
    epilog=examples(
        "rollbook cluster info --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster info --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook cluster info --metadata zk://zk1/ledgers -o json | jq '.bookies[].id'",
    )
)
@metadata_option
@output_option
def info(url: str, output: str) -> None:
    """Show which cluster it is, and its bookies.

    A bookie is writable, read-only, or down: it belongs to the cluster and is not registered.
    """
    place = _parse_url(url)

    async def look(store: MetadataStore) -> tuple[Cluster, bool, list[dict[str, Any]]]:
        cluster = await open_cluster(store, place.ledgers_root, layout=_layout_of(place))
        has_own_trees = await store.get(cluster.own_root) is not None
        return cluster, has_own_trees, await _list_bookies(store, cluster)

    cluster, has_own_trees, bookies = asyncio.run(_with_store(place, look))
    facts = _facts(place, cluster)
    if not has_own_trees:
        facts["own_root"] = None
    if output != "table":
        show_facts({**facts, "bookies": bookies}, output)
        return
    show_facts(facts, output)
    click.echo("")
    show_rows(("id", "state", "address", "incarnation"), bookies, output)


# --- The metadata store -----------------------------------------------------------------------


def _parse_url(text: str) -> MetadataUrl:
    url = MetadataUrl.parse(text)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "what is in memory is gone when this command ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return url


def _layout_of(url: MetadataUrl) -> Layout | None:
    return Layout(url.layout.value) if url.layout else None


async def _with_store(
    url: MetadataUrl, use: Callable[[MetadataStore], Awaitable[T]], *, create: bool = False
) -> T:
    """A command serves nobody else: an embedded store that nobody owns it uses alone, briefly."""
    try:
        async with await open_metadata_store(
            url, visit=True, create=create, operation_timeout_s=_TIMEOUT_S
        ) as store:
            return await use(store)
    except (Unavailable, OutcomeUnknown) as error:
        error.next_step = error.next_step or "check the metadata URL, and that its store runs"
        raise


async def _list_bookies(store: MetadataStore, cluster: Cluster) -> list[dict[str, Any]]:
    watcher = BookieWatcher(store, cluster.root)
    await watcher.start()
    await watcher.close()
    live = watcher.current
    known = await CookieNodes(store, cluster.root).list()
    down = {b: BookieServiceInfo() for b in known if live.find(b) is None}
    return [
        {
            "id": bookie_id,
            "state": state,
            "address": str(info.address) if info.address else None,
            "incarnation": info.incarnation,
        }
        for state, bookies in (
            ("writable", live.writable),
            ("read-only", live.read_only),
            ("down", down),
        )
        for bookie_id, info in sorted(bookies.items())
    ]


# --- What is shown ----------------------------------------------------------------------------


def _facts(url: MetadataUrl, cluster: Cluster) -> dict[str, Any]:
    return {
        "instance_id": cluster.instance_id,
        "metadata": str(url),
        "ledgers_root": cluster.root,
        "layout": cluster.layout.value,
        "own_root": cluster.own_root,
    }

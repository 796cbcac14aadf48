"""The actions of `rollbook cluster`, which use the metadata store at a URL."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import Cluster, initialise, open_cluster
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.errors import BadConfig, ClusterExists, OutcomeUnknown, Unavailable
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.service_info import BookieServiceInfo
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import COMMAND_TIMEOUT_S, open_metadata_store

T = TypeVar("T")

# The time-out of one request; it is short because a person waits for the response.
_TIMEOUT_S: Final = 5.0


def make_cluster(url: str, layout: str | None, *, if_missing: bool = False) -> dict[str, Any]:
    """Creates a cluster and returns its facts. With `if_missing`, an existing cluster is accepted. Raises
    `ClusterExists`.

    An existing cluster is always refused if it has another layout than the requested one.
    """
    place = parse_url(url)
    hint = Layout(place.layout.value) if place.layout else None
    wanted = Layout(layout) if layout else hint or Layout.HIERARCHICAL
    if hint not in (None, wanted) or not wanted.takes_new_ledgers:
        usable = " ".join(each.value for each in Layout if each.takes_new_ledgers)
        raise BadConfig(
            f"the metadata URL requests another layout: {place}",
            next_step=f"begin the URL with zk://, or use the same layout in the URL and in --layout: {usable}",
        )

    async def make(store: MetadataStore) -> Cluster:
        return await initialise(store, place.ledgers_root, random.SystemRandom(), wanted, place)

    async def make_or_open(store: MetadataStore) -> Cluster:
        try:
            return await make(store)
        except ClusterExists:
            found = await open_cluster(store, place.ledgers_root, url=place)
            if found.layout is not wanted and (layout or hint):
                raise
            return found

    use = make_or_open if if_missing else make
    return _facts(place, _run(place, use, create=True))


def look_at_cluster(url: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the cluster's facts and its bookies."""
    place = parse_url(url)

    async def look(store: MetadataStore) -> tuple[Cluster, bool, list[dict[str, Any]]]:
        cluster = await open_cluster(store, place.ledgers_root, url=place)
        has_own_trees = await store.get(cluster.own_root) is not None
        return cluster, has_own_trees, await list_bookies(store, cluster)

    cluster, has_own_trees, bookies = _run(place, look)
    facts = _facts(place, cluster)
    if not has_own_trees:
        facts["own_root"] = None
    return facts, bookies


def go_on_after_restore(url: str, above: int) -> dict[str, Any]:
    """Advances the counters of ledger ids, so that no id is assigned twice. Returns the lowest id that may be
    assigned from now on.
    """

    async def skip(store: MetadataStore, cluster: Cluster) -> dict[str, Any]:
        if not cluster.layout.takes_new_ledgers:
            raise BadConfig(f"the {cluster.layout.value} layout does not support new ledgers")
        next_id = await LedgerIds(store, cluster.root).skip(above)
        return {"instance_id": cluster.instance_id, "next_ledger_id": next_id}

    return run_on_store(url, skip)


def run_on_store(
    url: str,
    look: Callable[[MetadataStore, Cluster], Awaitable[T]],
    timeout_s: float | None = None,
) -> T:
    """Runs `look` on the store; `timeout_s` is the limit for all requests together."""
    place = parse_url(url)

    async def run(store: MetadataStore) -> T:
        cluster = await open_cluster(store, place.ledgers_root, url=place)
        return await look(store, cluster)

    return _run(place, run, timeout_s=timeout_s)


# --- The metadata store -----------------------------------------------------------------------


def _run(
    url: MetadataUrl,
    use: Callable[[MetadataStore], Awaitable[T]],
    *,
    create: bool = False,
    timeout_s: float | None = None,
) -> T:
    async def run() -> T:
        async with asyncio.timeout(timeout_s):
            return await _with_store(url, use, create=create)

    configure_logs(level="error", as_json=False)
    return asyncio.run(run())


def parse_url(text: str) -> MetadataUrl:
    """Raises `BadConfig`."""
    url = MetadataUrl.parse(text)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "a metadata store in memory is gone when this command ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return url


async def _with_store(
    url: MetadataUrl, use: Callable[[MetadataStore], Awaitable[T]], *, create: bool = False
) -> T:
    """Opens the store without serving other processes. If no process owns an embedded store, this process owns it
    while `use` runs.
    """
    try:
        async with await open_metadata_store(
            url,
            visit=True,
            create=create,
            operation_timeout_s=_TIMEOUT_S,
            open_timeout_s=COMMAND_TIMEOUT_S,
        ) as store:
            return await use(store)
    except (Unavailable, OutcomeUnknown) as error:
        error.next_step = (
            error.next_step or "check the metadata URL, and that the metadata store is running"
        )
        raise


async def list_bookies(store: MetadataStore, cluster: Cluster) -> list[dict[str, Any]]:
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


def _facts(url: MetadataUrl, cluster: Cluster) -> dict[str, Any]:
    return {
        "instance_id": cluster.instance_id,
        "metadata": str(url),
        "ledgers_root": cluster.root,
        "layout": cluster.layout.value,
        "own_root": cluster.own_root,
    }

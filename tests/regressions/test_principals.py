"""Keys, barriers, cursors and lists of one principal do not affect other principals."""

import asyncio
import json
import random
from collections.abc import Iterator

import pytest

from rollbook.api.access.core.access_file import digest_of
from rollbook.logservice import messages
from rollbook.logservice.core.cursors import pack_cursor
from rollbook.logservice.ids import CursorName, LogName, Offset
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Create
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions import lone_server
from tests.regressions.defects import defect
from tests.regressions.lone_server import Answer, Site

LOGS = "/v1/namespaces/shop/logs"
GRANTS = {
    "admin": 'admin = ["*"]\nread = ["*"]\nappend = ["*"]',
    "one": 'append = ["shop/*"]\nread = ["shop/*"]',
    "two": 'append = ["shop/*"]\nread = ["shop/*"]',
    "reader": 'read = ["shop/*"]',
    "stranger": "",
    "idler": 'read = ["shop/*"]\nread_records_per_s = 1',
}
CURSORS_MAX = 10_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    access = folder / "access.toml"
    sections = (
        f'[principals.{name}]\ntokens = [{{ sha256 = "{digest_of(name * 8)}" }}]\n{grants}\n'
        for name, grants in GRANTS.items()
    )
    access.write_text("".join((*sections, "# end\n")))
    with lone_server.running(folder, "--access-file", str(access)) as site:
        yield site


def ask(
    site: Site, name: str, path: str, method: str = "GET", body: bytes = b"", **headers: str
) -> Answer:
    return site.ask(path, method, body, authorization=f"Bearer {name * 8}", **headers)


def made(site: Site, log: str) -> str:
    path = f"{LOGS}/{log}"
    assert ask(site, "admin", path, "PUT")[0] == 201
    return path


@defect(
    "key-shared-between-principals",
    "An append was dropped as a duplicate of another principal's append with the same Idempotency-Key.",
)
def test_idempotency_keys_are_separate_per_principal(site: Site) -> None:
    records = f"{made(site, 'keys')}/records"
    raw = {"content_type": "application/octet-stream", "idempotency_key": "order-17"}
    answers = [
        ask(site, name, records, "POST", b"same", **raw) for name in ("one", "two", "one", "two")
    ]
    assert [status for status, _, _ in answers] == [201, 201, 200, 200]
    offsets = [json.loads(body)["first_offset"] for _, _, body in answers]
    assert offsets == [0, 1, 0, 1]


@defect("barrier-of-a-reader-writes", "Each barrier of a caller that may only read wrote an entry.")
def test_barriers_of_readers_write_nothing(site: Site) -> None:
    """LS14."""
    path = made(site, "barriers")
    raw = {"content_type": "application/octet-stream"}
    assert ask(site, "one", f"{path}/records", "POST", b"x", **raw)[0] == 201

    def size() -> int:
        return int(json.loads(ask(site, "admin", path)[2])["bytes"])

    before = size()
    for _ in range(5):
        status, _, body = ask(site, "reader", f"{path}:barrier", "POST")
        assert (status, json.loads(body)["tail"]) == (200, 1)
        told = ask(
            site, "reader", f"{path}/records?at_tail=stop_at_barrier", accept="application/x-ndjson"
        )
        assert (told[0], told[2].count(b'"offset":')) == (200, 2)
    assert size() == before
    assert ask(site, "one", f"{path}:barrier", "POST")[0] == 200
    assert size() > before


@defect(
    "cursors-in-one-answer", "All cursors of a log were listed in one answer, whatever its size."
)
def test_cursors_are_listed_in_pages(site: Site) -> None:
    path = f"{made(site, 'pages')}/cursors"
    for name in "abcde":
        body = json.dumps({"offset": 0}).encode()
        assert (
            ask(site, "one", f"{path}/{name}", "PUT", body, content_type="application/json")[0]
            == 200
        )
    found, token, pages = [], "", 0
    while pages < 9:
        page = json.loads(ask(site, "reader", f"{path}?limit=2&page_token={token}")[2])
        found += [each["name"] for each in page["cursors"]]
        token, pages = page.get("next_page", ""), pages + 1
        if not token:
            break
    assert (found, pages) == (list("abcde"), 3)


async def fill(metadata: str, log: LogName) -> None:
    """Creates as many cursors as a log may have, without the server, which would take minutes."""
    cursor = pack_cursor(messages.Cursor(CursorName("any"), Offset(0), 1, b"", False, 0))
    async with await open_metadata_store(metadata) as store:
        cluster = await open_cluster(store, MetadataUrl.parse(metadata).ledgers_root)
        folder = (
            f"{LogMetadataStore(store, cluster, SystemClock(), random.Random()).path(log)}/cursors"
        )
        await store.create(folder, b"")
        for start in range(0, CURSORS_MAX, 500):
            numbers = range(start, start + 500)
            await store.transaction([Create(f"{folder}/c{number}", cursor) for number in numbers])


@defect(
    "unbounded-cursors-of-a-log",
    "A caller that might read a log could make any number of cursors in it.",
)
def test_cursors_of_a_log_are_bounded(site: Site) -> None:
    """CB1."""
    path = f"{made(site, 'bounds')}/cursors"
    asyncio.run(fill(site.metadata, LogName("shop", "bounds")))
    body, how = json.dumps({"offset": 0}).encode(), {"content_type": "application/json"}
    status, _, told = ask(site, "one", f"{path}/more", "PUT", body, **how)
    assert (status, f"at most {CURSORS_MAX} cursors" in told.decode()) == (400, True)
    # An existing cursor can be moved.
    assert ask(site, "one", f"{path}/c7", "PUT", body, **how)[0] == 200
    assert ask(site, "admin", f"{path}/c7", "DELETE")[0] == 204
    assert ask(site, "one", f"{path}/more", "PUT", body, **how)[0] == 200
    assert ask(site, "one", f"{path}/further", "PUT", body, **how)[0] == 400


async def fill_totals(metadata: str, principal: str, cursors: int) -> None:
    """Records that the principal has this number of cursors in other logs."""
    from rollbook.logservice.core.cursors import CursorCounts, pack_counts

    async with await open_metadata_store(metadata) as store:
        cluster = await open_cluster(store, MetadataUrl.parse(metadata).ledgers_root)
        counts = CursorCounts(((principal, cursors),))
        path = f"{cluster.own_root}/cursor-totals/{principal}"
        await store.set(path, pack_counts(counts, bytes(16)))


@defect(
    "unbounded-cursors-of-a-principal",
    "The cursors of a principal were bounded in each log and not over all logs, of which there may be any number.",
)
def test_cursors_of_a_principal_are_bounded_over_all_logs(site: Site) -> None:
    path = f"{made(site, 'all-logs')}/cursors"
    body, how = json.dumps({"offset": 0}).encode(), {"content_type": "application/json"}
    assert ask(site, "two", f"{path}/first", "PUT", body, **how)[0] == 200
    asyncio.run(fill_totals(site.metadata, "two", 50_000))
    status, _, told = ask(site, "two", f"{path}/more", "PUT", body, **how)
    assert (status, b"two has 50000 cursors in all logs together" in told) == (400, True)
    assert ask(site, "one", f"{path}/more", "PUT", body, **how)[0] == 200
    assert ask(site, "admin", f"{path}/first", "DELETE")[0] == 204
    assert ask(site, "two", f"{path}/second", "PUT", body, **how)[0] == 200


@defect("lists-without-quota", "Lists of logs counted in no quota.")
def test_lists_count_in_quotas(site: Site) -> None:
    for number in range(3):
        made(site, f"counted-{number}")
    statuses = [ask(site, "idler", LOGS)[0] for _ in range(2)]
    assert statuses == [200, 429]


@defect(
    "list-reads-hidden-logs",
    "A list by a principal that may see nothing read every log of the cluster.",
)
def test_list_reads_no_log_for_a_principal_without_rights(site: Site) -> None:
    made(site, "hidden")
    # The server knows the principal from now on.
    assert ask(site, "stranger", "/v1/logs")[0] == 200
    site.bookie.stop()  # This stops the metadata store, too: no list can read a log.
    try:
        of_admin = ask(site, "admin", "/v1/logs", log_timeout_ms="100")
        of_stranger = ask(site, "stranger", "/v1/logs", log_timeout_ms="3000")
    finally:
        site.bookie.resume()
    assert of_admin[0] in (503, 504)
    assert of_stranger[0] == 200, of_stranger[2].decode()
    assert json.loads(of_stranger[2])["logs"] == []

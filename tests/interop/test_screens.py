"""The dashboard in Chromium on a cluster with a Java bookie: every screen opens, and facts that Java does not show have a
dash with the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest

import rollbook
from tests.interop.cluster import PATIENCE_S, ROLLBOOK, Cluster, Make
from tests.rest import browser
from tests.support.zookeeper import free_port


@dataclass(frozen=True)
class Site:
    url: str
    java: str  # The id of the Java bookie.
    ours: str  # The id of one of our bookies.
    ledger: int  # A segment of the log, with a copy of each entry on the Java bookie.


@pytest.fixture(scope="module")
def site(mixed: Cluster) -> Iterator[Site]:
    if browser.path() is None:
        pytest.skip(browser.missing())
    http, logs = free_port(), free_port()
    mixed.start_recovery("recovery-1", "--http", f"127.0.0.1:{http}")
    where = ("--listen", f"127.0.0.1:{logs}", "--server-name", "log-1", "--rest", "127.0.0.1:0")
    server = mixed.children.start(*ROLLBOOK, "server", "log", "--metadata", mixed.metadata, *where)
    while not server.line(PATIENCE_S).startswith("ready"):
        pass
    with rollbook.connect(f"log://127.0.0.1:{logs}") as client:
        log = client.open("orders", create=True)
        log.append(b"on three bookies, one of them Java's")
        (segment,) = log.segments()
    java = next(each.bookie_id for each in mixed.bookies if each.make is Make.JAVA)
    yield Site(
        f"http://127.0.0.1:{http}/dashboard",
        java,
        mixed.bookies[0].bookie_id,
        segment.ledger_id,
    )
    server.kill()
    mixed.end_recovery()


def test_every_screen_opens_with_a_java_bookie(site: Site) -> None:
    shown = {
        "": "Bookies",
        "/logs": "default/orders",
        "/log?name=default/orders": "on three bookies, one of them Java's",
        "/servers": site.java,
        "/server?name=log-1": "log_server",
        f"/process?kind=bookie&name={quote(site.java)}": "— Its own pages do not show this",
        f"/process?kind=bookie&name={quote(site.ours)}": "It shows no pages here",
        "/process?kind=recovery&name=recovery-1": "callback_hosts",
        "/bookies": site.java,
        f"/bookie?id={quote(site.java)}": "Own pages",
        "/ledgers": str(site.ledger),
        f"/ledgers/{site.ledger}": site.java,
        "/ledgers/bad": "No check and no repair has found bad entries.",
        "/recovery": "recovery-1",
        "/operations": "Same as",
        "/events": "Same as",
        "/callbacks": "No callback was made.",
        "/metadata": "Nodes below it",
    }
    with browser.Page() as page:
        for path, text in shown.items():
            page.open(f"{site.url}{path}")
            page.wait_until(f"location.href.endsWith({path.rpartition('/')[2]!r})")
            page.wait_for(text)
            assert not page.complaints, path

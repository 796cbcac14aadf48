"""The dashboard in Chromium: sign-in, a drain and every screen, without a browser error."""

import asyncio
from pathlib import Path

import pytest

from rollbook.api.access.authenticator import Authenticator
from tests.rest import browser
from tests.unit.api.dashboard.test_app import HERE, SCREENS, Site
from tests.unit.api.rest.fake_cluster import a_bookie
from tests.unit.api.rest.test_cluster_app import access_file


async def test_a_bookie_is_drained_in_a_browser(tmp_path: Path) -> None:
    """DB1, DB2: the content policy blocks no own content, and the browser's forms are accepted."""
    if browser.path() is None:
        pytest.skip(browser.missing())
    there = Site()
    hostile = "<script>document.title='owned'</script>"
    there.cluster.rows = [a_bookie("bk-1", reason=hostile), a_bookie("bk-2")]
    async with there.served(Authenticator(None, access_file(tmp_path))) as found:
        base = f"http://{found.client.address}"
        await asyncio.to_thread(visit, base, hostile)
    acts = [each for each in there.cluster.calls if each[0] != "pages"]
    assert acts == [("lifecycle", "bk-1", "draining", False)]


def visit(base: str, hostile: str) -> None:
    with browser.Page() as page:
        page.open(f"{base}/")
        page.wait_for("Show the token")
        page.run("document.querySelector('input[name=token]').value = 'boss'")
        page.run("document.querySelector('main button').click()")
        page.wait_for("1 ledger has fewer")
        page.run("document.querySelector('a[href$=\"/bookies\"]').click()")
        page.wait_for(hostile)
        page.run("document.querySelector('td a').click()")
        page.wait_for("Refused while it runs")
        page.run(
            "document.querySelector('input[value=drain]').form.querySelector('button').click()"
        )
        page.wait_for("bk-1 is draining.")
        for path in SCREENS:
            page.open(f"{base}{HERE}{path}")
            page.wait_for("Nodes below it" if "/metadata" in path else "Same as")
            assert "Rollbook" in page.run("document.title")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert not page.complaints

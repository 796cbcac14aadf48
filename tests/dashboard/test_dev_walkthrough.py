"""`rollbook dev` in Chromium, from the first log to a removed bookie. The tests build on each other in this order.

Console errors, policy reports and failed requests fail a test, except those caused by killed servers.
"""

import base64
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook
from tests.dashboard import axe
from tests.dashboard.site import Site, running_site
from tests.rest.browser import Page
from tests.support import commands

_LOG = "default/orders"
_OFFSETS = (
    "JSON.stringify([...document.querySelectorAll('#records tr td:first-child')]"
    ".map(each => Number(each.innerText)))"
)
_HOSTILE = (
    b"<script>document.title='owned'</script><img src=x onerror=document.title='owned'>",
    b"a\x00b \xe2\x80\xae txt.exe",
    b'"><hx-partial hx-target="body">gone</hx-partial>',
    b"\xff" * 100,
    b"x" * 65_536,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page(patience_s=20) as page:
        yield page


def click(page: Page, button: str, **fields: str) -> None:
    """Fills in the form that has this button, and presses the button."""
    find = f"[...document.querySelectorAll('form')].find(each => [...each.querySelectorAll('button')].some(b => b.innerText === {json.dumps(button)}))"
    page.wait_until(f"!!({find})")
    for name, value in fields.items():
        page.run(f"({find}).elements[{json.dumps(name)}].value = {json.dumps(value)}")
    page.run(f"({find}).querySelector('button').click()")


def open_live(page: Page, url: str) -> None:
    """Opens a page and waits for its live stream; reloads an error page up to three times."""
    shown = ""
    for _ in range(3):
        page.open(url)
        try:
            page.wait_until("window.htmx && document.querySelector('main')?._htmx?.sse", 10)
        except AssertionError:
            shown = f"{page.run('document.body?.innerText')} {page.complaints}"
            page.forget_complaints()
        else:
            return
    raise AssertionError(shown)


def test_log_is_created_followed_and_truncated(site: Site, page: Page) -> None:
    page.open(f"{site.url}/logs")
    page.wait_for("No log yet.")
    click(page, "Create", name="orders")
    page.wait_for("orders is made.")
    click(page, "Append", value="from a form")
    page.wait_for("Appended at 0.")
    page.wait_for("from a form")
    page.open(f"{site.url}/log?name={_LOG}")
    page.wait_until("window.htmx && document.querySelector('main')?._htmx?.sse")
    page.run("window.stays = true")
    with rollbook.connect(f"log://{site.logs}") as client:
        log = client.open("orders")
        for number in range(120):
            log.append(b"live %d" % number)
        for value in _HOSTILE:
            log.append(value)
    page.wait_for("live 119", 10)
    page.wait_for("<script>document.title", 10)
    page.wait_for("(65,536 bytes)", 10)
    assert page.run("window.stays"), "the page was reloaded"
    assert "owned" not in page.run("document.title")
    shown = json.loads(page.run(_OFFSETS))
    assert shown == sorted(set(shown), reverse=True)
    assert shown[:-1] == [each + 1 for each in shown[1:]], "a record is missing or repeated"
    click(page, "Show what truncating would do", truncate="5")
    page.wait_for("Records 0 to 5 (5) would no longer be readable")
    click(page, "Truncate", typed=_LOG)
    page.wait_for("The first record is 5 now.")
    assert not page.complaints


def test_charts_have_pixels(site: Site, page: Page) -> None:
    page.open(site.url)
    page.wait_until("document.querySelectorAll('.chart canvas').length === 4")
    page.wait_until("columns[0].length >= 4", 15)
    drawn = (
        "[...document.querySelectorAll('.chart canvas')].every(each => each.getContext('2d')"
        ".getImageData(0, 0, each.width, each.height).data.some(byte => byte))"
    )
    assert page.wait_until(drawn, 5)
    assert not page.complaints


def test_every_screen_passes_the_accessibility_check(site: Site, page: Page) -> None:
    """axe-core reports nothing serious, light or dark, and a narrow screen does not scroll sideways."""
    text = axe.source()
    if not text:
        pytest.skip(axe.missing())
    with rollbook.connect(f"log://{site.logs}") as client:
        log = client.open("orders")
        for number in range(50):  # The picture shows a full page of records.
            log.append(b'{"order": %d, "items": ["tea", "milk"]}' % number, key=b"shop")
    more = (f"{site.url}/log?name={_LOG}", f"{site.url}/bookie?id=bk-1", f"{site.url}/ledgers/0")
    for url in (*site.screens, *more):
        page.open(url)
        page.wait_until(f"document.readyState === 'complete' && location.href === '{url}'")
        looks = (("light", 1000), ("dark", 360))
        for scheme, width in looks if url == site.url or url in more else looks[1:]:
            page.call("Emulation.setEmulatedMedia", features=[_scheme(scheme)])
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **metrics)
            assert axe.complaints(page, text) == [], (url, scheme)
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), (url, width)
        _take_picture(page, url)
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", features=[_scheme("light")])
    assert not page.complaints


def test_events_appear_live_and_a_callback_is_tested(site: Site, page: Page) -> None:
    open_live(page, f"{site.url}/events?kind=recovery-paused")
    page.run("window.stays = true")
    for enabled in ("false", "true"):
        put = urllib.request.Request(
            f"http://{site.http}/api/v1/recovery/switch",
            f'{{"enabled": {enabled}}}'.encode(),
            {"content-type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(put, timeout=10):
            page.wait_for("Repair is paused.", 10)
    assert page.run("window.stays"), "the page was reloaded"
    page.open(f"{site.url}/callbacks")
    click(page, "Make", url="http://127.0.0.1:9/hook")
    page.wait_for("Its secret, shown only here: ")
    click(page, "Test")
    page.wait_for("The test is given-up.")
    name = page.run("document.querySelector('h1').innerText").removeprefix("Callback ")
    assert page.run("!document.body.innerText.includes('shown only here')")
    click(page, "Delete", typed=name)
    page.wait_for(f"Callback {name} is deleted.")
    assert not page.complaints


def _scheme(value: str) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": value}


def _take_picture(page: Page, url: str) -> None:
    """Takes the picture for docs/dashboard.md if ROLLBOOK_PICTURES names a folder."""
    folder = os.environ.get("ROLLBOOK_PICTURES")
    name = {"dashboard": "overview", f"dashboard/log?name={_LOG}": "log"}.get(
        url.partition("//")[2].partition("/")[2]
    )
    if not folder or not name:
        return
    page.call("Emulation.setEmulatedMedia", features=[_scheme("light")])
    metrics = {"width": 900, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **metrics)
    taken = page.call("Page.captureScreenshot", format="webp", quality=60)["data"]
    path = Path(folder) / f"dashboard-{name}.webp"
    path.write_bytes(base64.b64decode(taken))
    assert path.stat().st_size <= 40 * 1024


def test_drain_under_load_and_removal_appear_live(site: Site, page: Page) -> None:
    """Then the bookie is killed, the health sentence follows without a reload, and it is removed."""
    is_over = threading.Event()
    with rollbook.connect(f"log://{site.logs}") as client:
        logs = [client.open(f"load-{number}", create=True) for number in range(12)]

        def load() -> None:
            while not is_over.is_set():
                for log in logs:
                    log.append(b"x" * 1000)
                is_over.wait(0.05)

        for log in logs:
            log.append(b"x" * 30_000)
        loading = threading.Thread(target=load)
        loading.start()
        try:
            page.open(f"{site.url}/recovery")
            click(page, "Set the rate", bytes_per_s="20000")  # Slow enough to see the bar move.
            page.wait_for("The rate is 20000 bytes/s.")
            page.open(f"{site.url}/bookie?id=bk-9")
            click(page, "Drain")
            page.wait_for("bk-9 is draining.")
            page.run("window.bars = new Set(); window.stays = true")
            page.wait_until("bars.add(document.querySelector('progress')?.value).size >= 3", 60)
            faster = commands.run("recovery", "rate", "unlimited", "--metadata", site.metadata)
            assert faster.returncode == 0, faster.stderr
            page.wait_until("document.querySelector('#bookie').innerText.includes('drained')", 60)
            assert page.run("window.stays")
        finally:
            is_over.set()
            loading.join()
    page.open(site.url)
    before = page.wait_until("document.getElementById('health')?.innerText")
    assert before.startswith("Bookie bk-9 is "), "the drained bookie is the worst problem"
    page.run("window.stays = true")
    site.bookie.kill()
    page.wait_until(
        f"![{json.dumps(before)}, undefined].includes(document.getElementById('health')?.innerText)"
    )
    assert page.run("window.stays"), page.run("document.getElementById('health').innerText")
    page.open(f"{site.url}/bookie?id=bk-9")
    page.wait_until(
        "!/writable|read-only|unreachable/.test(document.querySelector('.badge')?.innerText ?? 'writable')",
        30,
    )
    click(page, "Remove", typed="bk-9")
    page.wait_for("bk-9 is removed.")
    page.open(site.url)
    page.wait_for("Everything works")
    assert not page.complaints


def test_open_page_continues_after_a_server_restart(site: Site, page: Page) -> None:
    """DB5: the page misses no record and shows none twice."""
    page.open(f"{site.url}/log?name={_LOG}")
    page.wait_until("document.querySelector('main')?._htmx?.sse?.status === 200")
    page.run("window.stays = true")
    site.kill_dev_and_start_it_again()
    with rollbook.connect(f"log://{site.logs}", wait_s=20) as client:
        log = client.open("orders")
        for number in range(70):
            log.append(b"after %d" % number)
    page.wait_for("after 69", 20)
    assert page.run("window.stays")
    shown = json.loads(page.run(_OFFSETS))
    assert shown[:-1] == [each + 1 for each in shown[1:]], "a record is missing or repeated"
    refused = [each for each in page.complaints if "ERR_CONNECTION_REFUSED" not in each]
    assert not [each for each in refused if "ERR_INCOMPLETE_CHUNKED" not in each]

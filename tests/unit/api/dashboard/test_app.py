"""The dashboard's pages: every screen, every form, every role, and forged requests."""

import asyncio
import re
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import structlog

from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.access.management_rights import Managing
from rollbook.api.dashboard import cluster_screens, parts
from rollbook.api.dashboard.app import Dashboard
from rollbook.api.dashboard.core.samples import Counted, Samples
from rollbook.api.dashboard.core.sessions import IDLE_S
from rollbook.api.dashboard.page_dependencies import OwnProcess, PageSources
from rollbook.api.dashboard.parts import Screen
from rollbook.api.dashboard.responses import refused
from rollbook.api.dashboard.viewer_log_client import LogServers
from rollbook.api.rest.cluster_app import OPEN_PATHS, make_app
from rollbook.api.rest.operation_registry import RunningOperations
from rollbook.api.rest.server import HttpConfig, HttpServer
from rollbook.proto.errors import BookieFailed, BookieUnreachable, InvalidRequest, Missing
from rollbook.proto.ports import Address
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.recovery.core.event_derivation import Event, EventKind
from rollbook.recovery.stats import RecoveryStats
from tests.messages import raises_message
from tests.unit.api.dashboard.core.test_markup import HOSTILE, Reader
from tests.unit.api.dashboard.fake_logs import FakeLogs, a_record
from tests.unit.api.rest.fake_cluster import FakeCluster, a_bookie, a_ledger
from tests.unit.api.rest.http_client import Answer, Client
from tests.unit.api.rest.test_cluster_app import access_file

HERE = "/dashboard"
SCREENS = (
    "",
    "/bookies",
    "/bookie?id=bk-1",
    "/ledgers",
    "/ledgers?state=open&short=true&bookie=bk-1",
    "/ledgers/7",
    "/ledgers/bad",
    "/recovery",
    "/logs",
    "/log?name=default/orders&format=json",
    "/log?name=default/orders&from=0&truncate=1",
    "/servers",
    "/server?name=log-1",
    "/process?kind=bookie&name=bk-1",
    "/process?kind=recovery&name=recovery-1",
    "/metadata",
    "/metadata?path=/plain",
    "/operations",
    "/events",
    "/events?kind=lifecycle&bookie=bk-1&log=default/orders",
    "/callbacks",
    f"/callback?id={0:032x}",
)
_LINK = re.compile(r'href="([^"]+)"')


def a_setting(name: str, value: str, source: str = "default") -> dict[str, str]:
    return {"section": "section", "name": name, "value": value, "source": source}


class Browser:
    """A client that keeps cookies, follows redirects, and finds the secret of forms."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cookies: dict[str, str] = {}
        self.secret = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, b"", **headers)

    async def post(self, path: str, *, secret: str | None = None, **fields: str) -> Answer:
        fields["secret"] = self.secret if secret is None else secret
        return await self.post_as(path, fields)

    async def post_as(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
        return await self._ask("POST", path, urlencode(fields).encode(), **headers)

    async def _ask(self, method: str, path: str, body: bytes, **headers: str) -> Answer:
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = await self.client.ask(method, path, body, **headers)
        if told := answer.headers.get("set-cookie"):
            name, _, value = told.partition(";")[0].partition("=")
            self.cookies[name] = value
            assert "; HttpOnly; SameSite=Strict" in told
        if found := re.search(rb'name="secret" value="([^"]*)"', answer.body):
            self.secret = found[1].decode()
        if answer.status == 303:
            return await self._ask("GET", answer.headers["location"], b"")
        return answer

    async def sign_in(self, token: str) -> Answer:
        return await self.post_as(f"{HERE}/sign-in", {"token": token, "next": "/bookies"})


class Site:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.logs = FakeLogs()
        self.samples = Samples()
        self.now_ns = 0
        self.operations = RunningOperations()
        stats = RecoveryStats()
        metrics = Metrics()
        metrics.add("recovery", stats)
        self.own = OwnProcess("recovery-1", [a_setting("callback_hosts", "h")], metrics)

    @asynccontextmanager
    async def served(
        self, authenticator: Authenticator | None = None, *, is_behind_tls: bool = False
    ) -> AsyncIterator[Browser]:
        managing = Managing(authenticator.audit if authenticator else AuditLog(lambda: 0))
        numbers = count()
        sources = PageSources(
            self.cluster, managing, self.operations, self.logs, self.samples, self.own
        )
        dashboard = Dashboard(
            sources,
            authenticator,
            lambda: f"drawn-{next(numbers)}",
            is_behind_tls=is_behind_tls,
            now_ns=lambda: self.now_ns,
        )
        app = make_app(self.cluster, managing, self.operations, Metrics())
        app.router.routes.extend(dashboard.routes)
        config = HttpConfig(Address("127.0.0.1", 0), knows_callers=authenticator is not None)
        server = await HttpServer.start(
            app, config, (*OPEN_PATHS, "/"), authenticator, own_door=HERE, own_refusal=refused
        )
        try:
            yield Browser(Client(server.address))
        finally:
            dashboard.end_streams()
            await server.close()
            await dashboard.close()
            await self.operations.close()


@pytest.fixture
def there() -> Site:
    return Site()


@pytest.fixture
async def browser(there: Site) -> AsyncIterator[Browser]:
    async with there.served() as browser:
        yield browser


def text_of(answer: Answer) -> str:
    reader = Reader()
    reader.feed(answer.body.decode())
    return " ".join(reader.texts)


# --- Screens ----------------------------------------------------------------------------------


async def test_every_screen_is_plain_html_with_a_policy(there: Site, browser: Browser) -> None:
    """No screen has inline or external content, and each shows the commands that do the same."""
    for path in SCREENS:
        answer = await browser.get(f"{HERE}{path}")
        assert answer.status == 200, path
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        text = answer.body.decode()
        inline = r"<script(?! src=\"/dashboard/)|<style| style=| on\w+=|=\"https?://(?!127)"
        assert not re.search(inline, text), path
        if "/metadata" not in path:  # No command and no route shows the metadata.
            assert "Same as" in text
            assert re.search("curl .*http://127[^ ]*/v1/", text)
    assert (await browser.get("/")).status == (await browser.get(f"{HERE}/")).status == 200
    nowhere = await browser.get(f"{HERE}/no/page")
    assert (nowhere.status, nowhere.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for name in parts.SCRIPTS:
        script = await browser.get(f"{HERE}/{name}")
        assert script.headers["content-type"].startswith("text/javascript")
    assert (await browser.get(f"{HERE}/style.css")).headers["content-type"].startswith("text/css")
    missing = await browser.get(f"{HERE}/bookie?id=bk-9")
    assert (missing.status, "no bookie bk-9" in text_of(missing)) == (404, True)
    assert (await browser.get(f"{HERE}/ledgers/x")).status == 400
    wrong = await browser.get(f"{HERE}/ledgers?state=opened")
    assert (wrong.status, "is not a state of a ledger" in text_of(wrong)) == (400, True)
    assert (await browser.get(f"{HERE}/ledgers/{'9' * 5000}")).status == 400


async def test_every_link_leads_to_a_page(there: Site, browser: Browser) -> None:
    seen: dict[str, int] = {}
    pending = [HERE]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        answer = await browser.get(path)
        seen[path] = answer.status
        found = _LINK.findall(answer.body.decode())
        pending += [each.replace("&amp;", "&") for each in found]
    assert {path: status for path, status in seen.items() if status != 200} == {}
    assert len(seen) >= 9


async def test_health_sentence_follows_the_cluster(there: Site, browser: Browser) -> None:
    assert "1 ledgers" not in text_of(await browser.get(HERE))
    there.cluster.verdict = "unavailable"
    there.now_ns += 2_000_000_000
    page = await browser.get(HERE)
    assert "New logs have all their copies" in text_of(page)
    assert b'http-equiv="refresh"' in page.body, "the page refreshes without scripts"


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_text_on_every_screen(
    name: str, there: Site, browser: Browser
) -> None:
    """DB1."""
    text = HOSTILE[name].replace("\ud800", "")
    there.cluster.rows = [a_bookie("bk-1", reason=text, address=text), a_bookie("z" + text[:200])]
    there.cluster.ledger_rows = [a_ledger(7, custom={text: text})]
    raw = text.encode()
    rows = [
        a_record(0, raw, key=raw[:100], headers={text[:100]: raw[:100]}),
        a_record(1, raw[:999]),
    ]
    there.logs.rows["default/orders"] = rows
    there.cluster.nodes["/plain"] = raw
    setting = a_setting(text, text, text)
    there.logs.setting = setting
    there.own = OwnProcess("recovery-1", [setting])
    there.cluster.pages = {"/api/v1/settings": {"settings": [setting]}}
    event = Event(text, EventKind.LIFECYCLE, 1, text, (text[:200],), 7, text, text, text, text)
    there.cluster.memory.add([event])
    there.cluster.callbacks.delivery |= {"event": text, "problem": text}
    for row in there.cluster.callbacks.rows.values():
        row |= {"url": f"https://h/{text}", "bookie": text, "principal": text}
    for path in SCREENS:
        reader = Reader()
        reader.feed((await browser.get(f"{HERE}{path}")).body.decode())
        found = [tag for tag, attrs in reader.tags if tag in ("script", "b", "img")]
        assert found == ["script"] * ((4 if path == "" else 3) if found else 0), (
            "the only scripts are the page's own"
        )
        assert not [attr for _, attrs in reader.tags for attr, _ in attrs if attr[:2] == "on"], path


async def test_names_in_shown_commands_are_shell_quoted(there: Site, browser: Browser) -> None:
    name = r"a;reboot<>?[\`"
    there.cluster.rows = [a_bookie(name)]
    reader = Reader()
    reader.feed((await browser.get(f"{HERE}/bookie?{urlencode({'id': name})}")).body.decode())
    commands = [text for text in reader.texts if text.startswith(("rollbook ", "curl "))]
    assert len(commands) == 9
    for text in commands:
        words = shlex.split(text)
        assert not text.startswith("rollbook") or words[3:4] == [name]
        shell = [
            "sh",
            "-c",
            f'rollbook() {{ printf "%s\\n" "$@"; }}; curl() {{ rollbook "$@"; }}; {text}',
        ]
        said = await asyncio.to_thread(subprocess.check_output, shell, text=True)
        assert said.splitlines() == words[1:]


async def test_a_time_beyond_the_calendar_is_shown_as_a_number(
    there: Site, browser: Browser
) -> None:
    beyond_ms = 253_402_300_800_000  # The year 10000.
    for since_ms in (beyond_ms, -(2**63), 2**63):
        there.cluster.rows = [a_bookie("bk-1", lifecycle_since_ms=since_ms)]
        there.now_ns += 10_000_000_000
        page = await browser.get(f"{HERE}/bookie?id=bk-1")
        assert (page.status, f"{since_ms} ms" in text_of(page)) == (200, True)


async def test_open_pages_share_a_response_until_a_change(there: Site, browser: Browser) -> None:
    there.now_ns += 1
    others = [Browser(browser.client) for _ in range(3)]
    for each in (browser, *others):
        await each.get(HERE)
        await each.get(f"{HERE}/bookie?id=bk-1")
    assert there.cluster.asked == {"health": 1, "bookie": 1}
    there.now_ns += 1
    await browser.post(f"{HERE}/bookie", id="bk-1", act="drain")
    assert "draining" in text_of(await others[0].get(f"{HERE}/bookie?id=bk-1"))
    there.now_ns += 2_000_000_000
    await browser.get(HERE)
    assert there.cluster.asked["health"] == 2


async def test_many_bookies_and_ledgers_are_shown_in_pages(there: Site, browser: Browser) -> None:
    there.cluster.rows = [a_bookie(f"bk-{number:04}") for number in range(1000)]
    there.cluster.ledger_rows = [a_ledger(number) for number in range(1000)]
    for path in ("/bookies", "/ledgers", "/ledgers?state=closed"):
        answer = await browser.get(f"{HERE}{path}")
        assert answer.body.count(b"<tr>") == 101
        assert len(answer.body) < 150_000
        (after,) = re.findall(r'href="([^"]*after=[^"]*)"', answer.body.decode())
        following = await browser.get(after.replace("&amp;", "&"))
        assert following.body.count(b"<tr>") == 101
        assert following.body != answer.body


async def test_each_process_shows_its_settings_and_metrics(there: Site, browser: Browser) -> None:
    """Covers log servers, bookies and the recovery server of the page; others show a reason."""
    there.cluster.pages = {
        "/api/v1/settings": {"settings": [a_setting("journal_dir", "/j", "--journal-dir")]},
        "/api/v1/bookie/status": {"latencies_ms": {"add": {"p99": 1.5}}, "entries": 10},
    }
    servers = text_of(await browser.get(f"{HERE}/servers"))
    assert "log-1" in servers
    assert "bk-2" in servers
    assert "recovery-1" in servers
    page = text_of(await browser.get(f"{HERE}/server?name=log-1"))
    assert "log_server drain_s 10.0 default" in page
    page = text_of(await browser.get(f"{HERE}/process?kind=bookie&name=bk-1"))
    assert "journal_dir /j --journal-dir" in page
    assert "latencies_ms.add.p99 1.5" in page
    page = text_of(await browser.get(f"{HERE}/process?kind=recovery&name=recovery-1"))
    assert "callback_hosts h default" in page
    assert "rollbook_recovery_" in page
    page = text_of(await browser.get(f"{HERE}/process?kind=recovery&name=elsewhere"))
    assert page.count("— A recovery server shows them only at its own address") == 2
    assert (await browser.get(f"{HERE}/process?kind=bookie&name=bk-9")).status == 404
    for kind, name in (("no", "bk-1"), ("recovery", "made-up"), ("recovery", "")):
        answer = await browser.get(f"{HERE}/process?kind={kind}&name={name}")
        assert answer.status == 404, (kind, name)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "missing",
            "— It shows no pages here: it was started without --http, or is a Java bookie.",
        ),
        ("unreachable", "— Nobody answers there."),
        (
            "java",
            "— Its own pages do not show this: it is a Java bookie, or of an earlier release.",
        ),
        ("nonsense", "— It does not show its settings as Rollbook does."),
    ],
)
async def test_bookie_without_settings_shows_the_reason(
    said: str, why: str, there: Site, browser: Browser
) -> None:
    if said == "missing":
        there.cluster.raises = Missing("it shows none")
    elif said == "java":
        there.cluster.raises = BookieFailed("the answer was 404: <html>")
    elif said == "unreachable":
        there.cluster.raises = BookieUnreachable("nobody answers there")
    else:
        there.cluster.pages = {"/api/v1/settings": [1]}
    page = await browser.get(f"{HERE}/process?kind=bookie&name=bk-1")
    assert (page.status, why in text_of(page)) == (200, True)


async def test_pages_of_a_stopped_bookie_say_it_does_not_run(there: Site, browser: Browser) -> None:
    there.cluster.rows = [a_bookie("bk-1", state="down")]
    assert "Own pages — (it does not run)" in text_of(await browser.get(f"{HERE}/bookie?id=bk-1"))
    there.cluster.raises = Missing("it shows none")
    page = text_of(await browser.get(f"{HERE}/process?kind=bookie&name=bk-1"))
    assert "It shows no pages here: it does not run." in page


# --- Live -------------------------------------------------------------------------------------


async def _events(
    browser: Browser, url: str, count: int, last: str = "", begins: asyncio.Event | None = None
) -> list[str]:
    """Returns the first events of a stream; `begins` is set when its head is received."""
    address = browser.client.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    head = f"GET {url} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookies}\r\n"
    writer.write((f"{head}last-event-id: {last}\r\n\r\n" if last else f"{head}\r\n").encode())
    found: list[str] = []
    async with asyncio.timeout(10):
        if begins:
            await reader.readuntil(b"\r\n\r\n")
            begins.set()
        while len(found) < count and (line := await reader.readline()):
            if line.startswith((b"id: ", b"event: ")):
                found.append((line + await reader.readuntil(b"\n\n")).decode())
    writer.close()
    return found


def _stream_of(page: Answer) -> str:
    (url,) = re.findall(r'hx-sse:connect="([^"]+)"', page.body.decode())
    return str(url).replace("&amp;", "&")


async def test_an_open_page_follows_the_cluster_and_resumes(there: Site, browser: Browser) -> None:
    """DB5: no record is missed or sent twice, and hostile records stay text."""
    url = _stream_of(await browser.get(f"{HERE}/log?name=default/orders"))
    rows = there.logs.rows["default/orders"]
    rows.append(a_record(1, b"<script>two</script>"))
    (event,) = await _events(browser, url, 1)
    assert (event.count("<tr>"), "&lt;script&gt;two" in event) == (1, True)
    last = event.partition("\n")[0].removeprefix("id: ")
    rows.append(a_record(2, b"three"))
    (event,) = await _events(browser, url, 1, last)
    assert ("two" in event, "three" in event) == (False, True)
    health = _stream_of(await browser.get(HERE))
    there.cluster.verdict = "unavailable"
    there.now_ns += 2_000_000_000
    (event,) = await _events(browser, health, 1)
    assert "New logs have all their copies" in event
    there.cluster.is_away = True
    there.now_ns += 42_000_000_000
    (event,) = await _events(browser, health, 1)
    assert "known 42 s ago" in event
    assert (await browser.get(f"{HERE}/live?page=/nowhere")).status == 404


async def test_open_pages_of_equal_rights_share_one_rendering(
    there: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    overview = cluster_screens.overview

    def count_rendered(*args: Any) -> Screen:
        rendered.append(1)
        return overview(*args)

    monkeypatch.setattr(cluster_screens, "overview", count_rendered)
    there.now_ns += 1
    url = f"{HERE}/live?page=/"
    first, *others = await asyncio.gather(*(_events(browser, url, 1) for _ in range(10)))
    assert "Health" in first[0]
    assert all(each == first for each in others)
    before = len(rendered)
    assert before <= 2, "one rendering for the first events and one for the next"
    there.now_ns += 500_000_000
    await _events(browser, url, 1)
    assert len(rendered) > before


async def test_overview_charts_have_the_samples(there: Site, browser: Browser) -> None:
    """DB7."""
    for second in (10, 12, 14):
        counted = Counted({"appended_records_total": second}, {0.5: second, float("inf"): second})
        there.samples.add(second, {"log-1": counted})
    page = await browser.get(HERE)
    assert re.findall(r'<data value="([^"]+)"', page.body.decode()) == [
        "[10, null, null, null, null]",
        "[12, 1.0, 0.0, 0.0, 500.0]",
        "[14, 1.0, 0.0, 0.0, 500.0]",
    ]
    there.samples.add(16, {})
    (event,) = await _events(browser, _stream_of(page), 1)
    assert re.findall(r'<data value="([^"]+)"', event) == ["[16, null, null, null, null]"]


async def test_stream_ends_with_its_idle_session(there: Site, tmp_path: Path) -> None:
    """DB2, DB5: an open stream does not prolong its session."""
    async with there.served(Authenticator(None, access_file(tmp_path))) as browser:
        await browser.sign_in("looker")
        url = _stream_of(await browser.get(HERE))
        there.now_ns += (IDLE_S - 1) * 1_000_000_000
        begins = asyncio.Event()
        streaming = asyncio.create_task(_events(browser, f"{url}0", 2, begins=begins))
        await begins.wait()
        there.now_ns += 2_000_000_000
        *_, event = await streaming
        assert event.startswith("event: signed-out")
        assert (await _events(Browser(browser.client), url, 1))[0].startswith("event: signed-out")


# --- Outages ----------------------------------------------------------------------------------


async def test_metadata_outage_shows_old_data_with_its_age(there: Site, browser: Browser) -> None:
    """DB3: no page is a 500, and none looks current."""
    of_cluster = [
        path for path in SCREENS[:-1] if "kind=recovery" not in path
    ]  # That page shows this process.
    for path in of_cluster:
        await browser.get(f"{HERE}{path}")
    there.cluster.is_away = there.logs.is_away = True
    there.now_ns += 42_000_000_000
    for path in of_cluster:
        answer = await browser.get(f"{HERE}{path}")
        assert (answer.status, "known 42 s ago" in text_of(answer)) == (200, True), path
    unknown = await browser.get(f"{HERE}/ledgers?bookie=bk-2")
    assert unknown.status == 503
    assert "Nothing is known yet" in text_of(unknown)
    refused = await browser.post(f"{HERE}/bookie", id="bk-1", act="drain")
    assert "The metadata store cannot be reached" in text_of(refused)


# --- Changes ----------------------------------------------------------------------------------


async def test_every_form_does_what_its_button_says(there: Site, browser: Browser) -> None:
    await browser.get(f"{HERE}/bookie?id=bk-1")
    there.cluster.rows[1]["allowed"] = ["draining", "active", "drained"]
    bookie, ledger, recovery = f"{HERE}/bookie", f"{HERE}/ledgers/7", f"{HERE}/recovery"
    for path, fields, said in (
        (
            bookie,
            {"id": "bk-1", "act": "judge"},
            "bk-1 cannot be removed safely yet: 3 ledgers name it",
        ),
        (bookie, {"id": "bk-1", "act": "drain"}, "bk-1 is draining."),
        (bookie, {"id": "bk-1", "act": "drain"}, "It cannot."),
        (bookie, {"id": "bk-1", "act": "undrain"}, "bk-1 is active."),
        (bookie, {"id": "bk-2", "act": "drained"}, "Type bk-2 to confirm it."),
        (bookie, {"id": "bk-2", "act": "drained", "typed": "bk-2"}, "bk-2 is drained."),
        (bookie, {"id": "bk-2", "act": "remove", "typed": "bk-2"}, "3 ledgers name it"),
        (bookie, {"id": "bk-2", "act": "remove", "typed": "bk-1", "give_up": "1"}, "Type bk-2"),
        (bookie, {"id": "bk-2", "act": "remove", "typed": "bk-2", "give_up": "x"}, "whole number"),
        (bookie, {"id": "bk-2", "act": "remove", "typed": "bk-2", "give_up": "1"}, "is removed."),
        (bookie, {"id": "bk-2", "act": "dance"}, "Unknown action 'dance'"),
        (ledger, {"act": "verify"}, "Begun for ledger 7."),
        (ledger, {"act": "recover"}, "Type 7 to confirm it."),
        (ledger, {"act": "recover", "typed": "7"}, "Begun for ledger 7."),
        (recovery, {"act": "audit"}, "The auditor recovery-1 was asked."),
        (recovery, {"act": "pause"}, "Repair is paused."),
        (recovery, {"act": "resume"}, "Repair is enabled."),
        (recovery, {"act": "delay", "delay_s": "60"}, "The delay is 60 s."),
        (recovery, {"act": "delay", "delay_s": "soon"}, "whole number"),
        (recovery, {"act": "rate", "bytes_per_s": "0"}, "The rate is unlimited."),
    ):
        with structlog.testing.capture_logs() as logs:
            answer = await browser.post(path, **fields)
        assert (answer.status, said in text_of(answer)) == (200, True), (fields, text_of(answer))
        if said.startswith(("bk-1 is", "bk-2 is", "Begun", "The ", "Repair")):
            assert [each for each in logs if each["event"] in ("act_done", "act_begun")], fields
    assert [call[0] for call in there.cluster.calls] == [
        "lifecycle",
        "lifecycle",
        "lifecycle",
        "remove",
        "verify",
        "recover",
        "audit",
        "switch",
        "switch",
        "delay",
        "rate",
    ]
    again = text_of(await browser.get(f"{HERE}/recovery"))
    assert "unlimited." not in again, "the note is shown once"


async def test_callbacks_are_created_tested_and_deleted(there: Site, browser: Browser) -> None:
    """The secret is shown once, on one page."""
    await browser.get(f"{HERE}/callbacks")
    url = "https://hooks.example.com/x"
    made = await browser.post(
        f"{HERE}/callbacks", act="create", url=url, **{"kind-lifecycle": "on", "kind-test": "on"}
    )
    assert "shown only here: 5ec3e7-key" in text_of(made)
    name = f"{1:032x}"
    page = await browser.get(f"{HERE}/callback?id={name}")
    assert ("5ec3e7-key" in text_of(page), url in text_of(page)) == (False, True)
    assert there.cluster.callbacks.rows[name]["kinds"] == ["lifecycle"]
    for fields, said in (
        ({"act": "test"}, "The test is delivered."),
        ({"act": "delete"}, f"Type {name[:12]} to confirm it."),
        ({"act": "delete", "typed": name[:12]}, f"Callback {name[:12]} is deleted."),
        ({"act": "test"}, "there is no callback"),
        ({"act": "dance"}, "Unknown action 'dance'"),
    ):
        answer = await browser.post(f"{HERE}/callback", id=name, **fields)
        assert said.lower() in text_of(answer).lower(), (fields, text_of(answer))
    refused = await browser.post(f"{HERE}/callbacks", act="create", url="http://10.0.0.1/")
    assert "only for this machine" in text_of(refused)
    assert (await browser.get(f"{HERE}/callback?id={name}")).status == 404


async def test_only_administrators_see_callback_urls_and_forms(there: Site, tmp_path: Path) -> None:
    """This holds although responses are shared between visitors."""
    authenticator = Authenticator(None, access_file(tmp_path))
    async with there.served(authenticator) as browser:
        for role in ("boss", "hand", "looker"):
            await browser.sign_in(role)
            for path in ("/callbacks", f"/callback?id={0:032x}"):
                page = await browser.get(f"{HERE}{path}")
                assert (b"5ec3e7-path" in page.body) is (role == "boss")
                assert (b'name="act"' in page.body) is (role == "boss")
            for path in ("/callbacks", "/callback"):
                for act in ("create", "test", "delete"):
                    await browser.post(f"{HERE}{path}", id=f"{0:032x}", act=act, url="https://h/")
            assert [call[0] for call in there.cluster.calls] == (
                ["create-callback", "test-callback"] if role == "boss" else []
            )
            there.cluster.calls.clear()


async def test_every_form_of_logs_does_what_its_button_says(there: Site, browser: Browser) -> None:
    await browser.get(f"{HERE}/logs")
    log, name = f"{HERE}/log", "default/orders"
    for path, fields, said in (
        (f"{HERE}/logs", {"act": "create", "name": "default/new"}, "default/new is made."),
        (log, {"id": name, "act": "append", "value": "caf\u00e9", "key": ""}, "Appended at 1."),
        (log, {"id": name, "act": "roll"}, "Segment 1 is written now."),
        (log, {"id": name, "act": "transfer", "to": "log-2"}, "Its owner is log-2 now."),
        (log, {"id": name, "act": "truncate", "before": "1"}, "Type default/orders"),
        (log, {"id": name, "act": "truncate", "before": "1", "typed": name}, "first record is 1"),
        (log, {"id": name, "act": "seal"}, "Type default/orders to confirm it."),
        (log, {"id": name, "act": "seal", "typed": name}, "Sealed at 2."),
        (log, {"id": name, "act": "dance"}, "Unknown action 'dance'"),
        (f"{HERE}/server", {"id": "log-1", "act": "drain"}, "log-1 has 3 logs to hand over."),
        (f"{HERE}/server", {"id": "log-1", "act": "resume"}, "log-1 serves."),
    ):
        answer = await browser.post(path, **fields)
        assert (answer.status, said in text_of(answer)) == (200, True), (fields, text_of(answer))
    assert there.logs.calls == [
        ("", "create", "default/new"),
        ("", "append", name, "caf\u00e9".encode(), None),
        ("", "roll", name),
        ("", "transfer", name, "log-2"),
        ("", "truncate", name, "1"),
        ("", "seal", name),
        ("", "drain", "log-1", False),
        ("", "drain", "log-1", True),
    ]


async def test_records_are_read_with_the_rights_of_the_viewer(there: Site, tmp_path: Path) -> None:
    """DB4: a visitor without rights does not get another's records; a token in a form is ignored."""
    authenticator = Authenticator(None, access_file(tmp_path))
    there.logs.refused = ("hand",)
    async with there.served(authenticator) as browser:
        path = f"{HERE}/log?name=default/orders"
        await browser.sign_in("boss")
        assert "one" in text_of(await browser.get(path))
        other = Browser(browser.client)
        await other.sign_in("hand")
        refused = await other.get(path)
        assert (refused.status, "one" in text_of(refused)) == (403, False)
        await other.post(f"{HERE}/log", id="default/orders", act="roll", token="boss")
        assert there.logs.calls == []
        there.logs.is_away = True
        there.now_ns += 42_000_000_000
        assert "known 42 s ago" in text_of(await browser.get(path))
        assert (await other.get(path)).status == 503


@pytest.mark.parametrize("start", ["9" * 5000, "٣", "-", "x", "1e3", "1@" + "f" * 5000])
async def test_invalid_position_is_reported(start: str, browser: Browser) -> None:
    """The page, its stream and the log client report it; no log server is asked."""
    query = urlencode({"name": "orders", "from": start})
    page = await browser.get(f"{HERE}/log?{query}")
    said = "is not a log's uid" if "@" in start else "is not a position"
    assert (page.status, said in text_of(page)) == (400, True)
    (event,) = await _events(browser, f"{HERE}/live?{urlencode({'page': f'/log?{query}'})}", 1)
    assert "The data below is from the last successful update" in event

    async def nowhere() -> list[str]:
        return []

    with raises_message(InvalidRequest):
        await LogServers(nowhere).records("", "orders", start)


async def test_a_form_that_is_sent_twice_appends_once(there: Site, browser: Browser) -> None:
    """DB9: another value, or the form of a page loaded later, is another append."""
    path, rows = f"{HERE}/log?name=orders", there.logs.rows["default/orders"]

    async def number() -> str:
        (found,) = re.findall(rb'name="once" value="([^"]+)"', (await browser.get(path)).body)
        return str(found.decode())

    form = {"id": "orders", "act": "append", "value": "v", "once": await number()}
    for _ in range(2):
        assert "Appended at 1." in text_of(await browser.post(f"{HERE}/log", **form))
    both = [browser.post(f"{HERE}/log", **form) for _ in range(2)]
    await asyncio.gather(*both)
    assert len(rows) == 2
    more = await browser.post(f"{HERE}/log", **{**form, "value": "w"})
    assert "Appended at 2." in text_of(more)
    again = await browser.post(f"{HERE}/log", **{**form, "once": await number()})
    assert "Appended at 3." in text_of(again)


@pytest.mark.parametrize(
    ("message", "next_step", "said"),
    [
        ("bk-1 still runs", "stop it first", "bk-1 still runs. Stop it first."),
        ("alpha still runs", "", "alpha still runs."),
        ("no bookie is there", "`rollbook dev` starts one", "No bookie is there. `rollbook dev` s"),
        ("it is there.", "look again!", "It is there. Look again!"),
    ],
)
async def test_notes_are_capitalized_except_for_ids(
    message: str, next_step: str, said: str, there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> int:
        raise InvalidRequest(message, next_step=next_step)

    monkeypatch.setattr(there.logs, "roll", refuse)
    async with there.served() as browser:
        await browser.get(f"{HERE}/logs")
        page = await browser.post(f"{HERE}/log", id="alpha", act="roll")
        assert said in text_of(page)


async def test_too_large_form_gets_a_413_page(there: Site) -> None:
    async with there.served() as browser:
        await browser.get(f"{HERE}/logs")
        fields = {"id": "orders", "act": "append", "value": "v" * 70_000}
        page = await browser.post(f"{HERE}/log", **fields)
        assert (page.status, page.headers["content-type"]) == (413, "text/html; charset=utf-8")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "A form takes 64 KiB after encoding" in text_of(page)
        assert "`rollbook log append` takes more" in text_of(page)
        other = await browser.client.ask("POST", "/api/v1/recovery:audit", b"v" * 70_000)
        assert (other.status, other.headers["content-type"]) == (413, "application/problem+json")


ACTS_ON_LOGS = (
    ("/logs", {"act": "create", "name": "orders"}),
    ("/log", {"id": "orders", "act": "append", "value": "v"}),
    ("/log", {"id": "orders", "act": "truncate", "before": "1", "typed": "orders"}),
    ("/log", {"id": "orders", "act": "seal", "typed": "orders"}),
    ("/log", {"id": "orders", "act": "roll"}),
    ("/log", {"id": "orders", "act": "transfer", "to": "log-2"}),
    ("/server", {"id": "log-1", "act": "drain"}),
    ("/server", {"id": "log-1", "act": "resume"}),
)


@pytest.mark.parametrize(
    ("rights", "is_readable", "done"),
    [
        ("monitor = true", False, ""),
        ('monitor = true\nread = ["*"]', True, ""),
        ('monitor = true\nappend = ["default/*"]', False, "append"),
        (
            'monitor = true\nadmin = ["default/orders"]',
            False,
            "create truncate seal roll transfer",
        ),
        (
            "operate = true",
            False,
            "create append truncate seal roll transfer drain drain",
        ),
        ('operate = true\nread = ["*"]\ndeny = ["default/orders"]', False, "drain drain"),
    ],
)
async def test_dashboard_checks_rights_on_logs_itself(
    rights: str, is_readable: bool, done: str, there: Site, tmp_path: Path
) -> None:
    """DB8: covers forms, changes, records and the audit, also for the short name of a log.

    Log servers take no token in this set-up, so only the dashboard can check rights.
    """
    path = tmp_path / "access.toml"
    path.write_text(
        f'[principals.ann]\ntokens = [{{ sha256 = "{digest_of("ann")}" }}]\n{rights}\n# end\n'
    )
    path.chmod(0o600)
    there.logs.rows["default/orders"][0]["value"] = b"mine alone"
    async with there.served(Authenticator(None, str(path))) as browser:
        await browser.sign_in("ann")
        shown = b""
        for each in ("/logs", "/log?name=orders&truncate=1", "/server?name=log-1"):
            page = await browser.get(f"{HERE}{each}")
            shown += page.body
            assert page.status == 200 or not (is_readable or done.replace("drain", "").strip())
        assert (b"mine alone" in shown) == is_readable
        buttons = {each.decode() for each in re.findall(rb'name="act" value="(\w+)"', shown)}
        unshown = {"create", "transfer"}  # `transfer` needs another server.
        assert buttons - unshown == set(done.split()) - unshown
        with structlog.testing.capture_logs() as logs:
            for each, fields in ACTS_ON_LOGS:
                await browser.post(f"{HERE}{each}", **fields)
        assert [call[1] for call in there.logs.calls] == done.split()
        assert {call[2] for call in there.logs.calls} <= {"default/orders", "log-1"}
        events = [each["event"] for each in logs if each.get("method") not in (None, "Read")]
        assert events.count("act_done") == len(done.split())
        assert events.count("access_refused") == len(ACTS_ON_LOGS) - len(done.split())


async def test_secrets_of_the_metadata_are_hidden(there: Site, browser: Browser) -> None:
    """DB4."""
    page = text_of(await browser.get(f"{HERE}/metadata?path=/plain"))
    assert ("seen" in page, '"rack": "r1"' in page) == (False, True)


async def test_forged_forms_change_nothing(there: Site, browser: Browser) -> None:
    """DB2: other origins, missing, guessed or foreign secrets, and other content types."""
    drain = {"id": "bk-1", "act": "drain"}
    await browser.get(f"{HERE}/bookie?id=bk-1")
    other = Browser(browser.client)
    await other.get(f"{HERE}/bookie?id=bk-1")
    for secret in ("", "drawn-99", other.secret):
        assert secret != browser.secret
        answer = await browser.post(f"{HERE}/bookie", secret=secret, **drain)
        assert "not one of this session" in text_of(answer)
    good = {**drain, "secret": browser.secret}
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"host": "evil.example"},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data"},
    ):
        await browser.post_as(f"{HERE}/bookie", good, **headers)
    assert there.cluster.calls == []
    await browser.post_as(f"{HERE}/bookie", good)
    assert len(there.cluster.calls) == 1


# --- Sign-in and roles ------------------------------------------------------------------------


async def test_every_page_needs_a_session_opened_by_a_token(there: Site, tmp_path: Path) -> None:
    """DB2."""
    authenticator = Authenticator(None, access_file(tmp_path))
    async with there.served(authenticator) as browser:
        for path in SCREENS:
            assert "Sign in" in text_of(await browser.get(f"{HERE}{path}"))
        refused = await browser.sign_in("guessed")
        assert (refused.status, browser.cookies) == (401, {})
        browser.cookies = {f"rollbook-{browser.client.address.port}": "fixed"}
        page = await browser.sign_in("hand")
        assert "fixed" not in browser.cookies.values()
        assert "bk-1" in text_of(page), "sign-in leads to the requested page"
        assert "hand" in text_of(page), "the page shows the principal's name"
        for path in SCREENS:
            answer = await browser.get(f"{HERE}{path}")
            assert answer.status == 200
            assert b"$TOKEN" in answer.body or "/metadata" in path
        assert (await browser.client.get("/api/v1/bookies", **cookie_of(browser))).status == 401
        there.now_ns += IDLE_S * 1_000_000_000
        assert "Sign in" in text_of(await browser.get(HERE))


async def test_token_is_in_no_page_and_no_cookie(there: Site, tmp_path: Path) -> None:
    """DB2: the session is held by the server, also after a form with errors."""
    token = "canary-token-of-a-person-0123456789"
    path = Path(access_file(tmp_path))
    path.write_text(path.read_text().replace(digest_of("boss"), digest_of(token)))
    async with there.served(Authenticator(None, str(path))) as browser:
        answers = [await browser.sign_in(f"{token}-guessed"), await browser.sign_in(token)]
        answers += [await browser.get(f"{HERE}{each}") for each in SCREENS]
        answers.append(await browser.post(f"{HERE}/bookie", id="bk-1", act="nonsense", token=token))
        assert [each.status for each in answers[:-1]] == [401] + [200] * (1 + len(SCREENS))
        shown = [each.body.decode() + str(each.headers) for each in answers]
        assert "boss" in shown[1]
        for text in (*shown, str(browser.cookies)):
            assert token not in text


async def test_session_cookie_behind_tls_is_host_only_and_secure(
    there: Site, tmp_path: Path
) -> None:
    """DB2."""
    async with there.served(
        Authenticator(None, access_file(tmp_path)), is_behind_tls=True
    ) as browser:
        fields = urlencode({"token": "hand", "next": "//evil.example"}).encode()
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = await browser.client.ask("POST", f"{HERE}/sign-in", fields, **kind)
        assert answer.headers["location"] == f"{HERE}//evil.example"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-rollbook-{browser.client.address.port}=")
        assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")
        assert "hand" not in cookie


async def test_each_role_sees_and_uses_only_its_buttons(there: Site, tmp_path: Path) -> None:
    """MG1: pages and routes check the same rights."""
    authenticator = Authenticator(None, access_file(tmp_path))
    async with there.served(authenticator) as browser:
        for role, buttons in (
            ("nobody", 0),
            ("looker", 1),
            ("hand", 2),
            ("boss", 3),
        ):
            there.cluster.rows = [a_bookie("bk-1")]
            await browser.sign_in(role)
            page = await browser.get(f"{HERE}/bookie?id=bk-1")
            acts = re.findall(rb'name="act" value="(\w+)"', page.body)
            assert len(acts) == buttons, role
            assert page.status == (403 if role == "nobody" else 200)
            done = await browser.post(f"{HERE}/bookie", id="bk-1", act="drain")
            assert bool(there.cluster.calls) == (role in ("hand", "boss")), text_of(done)
            there.cluster.calls.clear()
            fields = {"id": "bk-1", "act": "remove", "typed": "bk-1", "give_up": "1"}
            await browser.post(f"{HERE}/bookie", **fields)
            assert bool(there.cluster.calls) == (role == "boss"), role
            there.cluster.calls.clear()


async def test_session_ends_when_rights_change_or_at_sign_out(there: Site, tmp_path: Path) -> None:
    """DB2."""
    path = access_file(tmp_path)
    now_ns = 0
    authenticator = Authenticator(None, path, now_ns=lambda: now_ns)
    async with there.served(authenticator) as browser:
        await browser.sign_in("hand")
        assert (await browser.get(f"{HERE}/bookies")).status == 200
        text = Path(path).read_text()
        Path(path).write_text(text.replace("operate = true", "monitor = true"))
        now_ns += 60_000_000_000
        assert "Sign in" in text_of(await browser.get(f"{HERE}/bookies"))
        await browser.sign_in("looker")
        await browser.get(f"{HERE}/bookies")
        await browser.post(f"{HERE}/sign-out")
        assert "Sign in" in text_of(await browser.get(f"{HERE}/bookies"))


def cookie_of(browser: Browser) -> dict[str, str]:
    return {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}

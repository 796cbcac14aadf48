"""Each "same as" command of each screen is run and does what the screen shows or its button does.

`LINES` lists all commands, so a new one needs a row. They are run in this order, on one cluster.
"""

import json
import re
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

import pytest

import rollbook
from tests.dashboard.site import Site, running_site
from tests.rest.browser import Page
from tests.support import commands, curl

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Line:
    """A command without the cluster's addresses; `API` and `LOGS` stand for the URLs of the two servers."""

    typed: str
    prints: str
    shown: str  # The page shows this after the command.
    page: str = ""  # The page to look at, if it is another one.
    first: str = ""  # A command to run before, so that this one changes something.
    code: int = 0  # The exit code; for curl the HTTP status of an error.
    button: str = ""  # The button with the same effect; the page then shows `shown`.
    field: tuple[str, str] = ("", "")  # The form field to fill in before.


LINES = {
    "": (
        Line("rollbook cluster health", "healthy", "Health healthy"),
        Line("rollbook recovery status", "enabled", "Repair enabled"),
        Line("curl API/cluster/health", '"health":"healthy"', "Health healthy"),
        Line("curl API/recovery", '"autorecovery":"enabled"', "Repair enabled"),
    ),
    "/logs": (
        Line("rollbook log ls --long", "default/orders", "default/orders"),
        Line("curl LOGS/logs", '["default/orders","shop/returns"]', "shop/returns"),
    ),
    "/logs?prefix=shop": (
        Line("rollbook log ls --long shop/", "shop/returns", "shop/returns"),
        Line("curl LOGS/namespaces/shop/logs", '["shop/returns"]', "shop/returns"),
    ),
    "/logs?prefix=ord*": (
        Line("rollbook log ls --long default/ord", "default/orders", "default/orders"),
        Line(
            "curl 'LOGS/namespaces/default/logs?prefix=ord'", '["default/orders"]', "default/orders"
        ),
    ),
    "/log?name=default/orders": (
        Line("rollbook log show default/orders", "head                      0", "Head 0"),
        Line("rollbook log read default/orders --from -50 --limit 50", "tea", "tea"),
        Line("rollbook log segments default/orders", "\n0 ", "segment 0"),
        Line("rollbook cursor ls default/orders", "billing", "billing"),
        Line(
            "rollbook log truncate default/orders --before 0 --dry-run",
            "records      0",
            "Records 0 to 0 (0) would no longer be readable",
            button="Show what truncating would do",
            field=("truncate", "0"),
        ),
        Line("curl LOGS/namespaces/default/logs/orders", '"head":0', "Head 0"),
        Line(
            "curl 'LOGS/namespaces/default/logs/orders/records?from=-50&limit=50'",
            '"data":"tea"',
            "tea",
        ),
        Line("curl LOGS/namespaces/default/logs/orders/segments", '"segment_id":0', "segment 0"),
        Line("curl LOGS/namespaces/default/logs/orders/cursors", '"billing"', "billing"),
        Line(
            'curl -X POST --json \'{"before": "0", "dry_run": true}\' LOGS/namespaces/default/logs/orders:truncate',
            '"records":0',
            "Records 0 to 0 (0) would no longer be readable",
            button="Show what truncating would do",
            field=("truncate", "0"),
        ),
    ),
    "/servers": (
        Line("curl API/cluster/health", '"1 of 1 reachable"', "log-1 serving"),
        Line("rollbook cluster servers", "serving", "log-1 serving"),
        Line("curl LOGS/servers", '"state":"serving"', "log-1 serving"),
    ),
    "/server?name=log-1": (
        Line("rollbook cluster drain log-1", "draining  yes", "State draining"),
        Line("curl LOGS/settings", '"server_name"', "server_name log-1"),
        Line("curl LOGS/stats", '"rollbook_log_readers"', "rollbook_log_readers"),
        Line(
            "curl -X POST LOGS/servers/log-1:drain",
            '"logs_left":0',
            "State draining",
            first="curl -X POST LOGS/servers/log-1:resume",
        ),
        Line("curl -X POST LOGS/servers/log-1:resume", '"logs_left":0', "State serving"),
    ),
    "/process?kind=bookie&name=bk-1": (
        Line("curl API/bookies/bk-1/pages/settings", '"bookie_id"', "bookie_id bk-1"),
        Line("curl API/bookies/bk-1/pages/status", '"state":"writable"', "state writable"),
    ),
    "/process?kind=bookie&name=bk-9": (
        Line(
            "curl API/bookies/bk-9/pages/settings",
            "start the bookie with --http",
            "it was started without --http",
            code=404,
        ),
        Line(
            "curl API/bookies/bk-9/pages/status",
            "start the bookie with --http",
            "it was started without --http",
            code=404,
        ),
    ),
    "/process?kind=recovery&name=recovery-1": (
        Line("curl API/settings", '"recovery-1"', "name recovery-1"),
    ),
    "/ledgers": (
        Line("rollbook ledger ls --long", "3/3/2", "3/3/2"),
        Line("curl API/ledgers", '"quorum":"3/3/2"', "3/3/2"),
    ),
    "/ledgers?after=0": (
        Line("rollbook ledger ls --long --start 1", "\n1 ", "Made 1 "),
        Line("curl 'API/ledgers?after=0'", '"ledger_id":1', "Made 1 "),
    ),
    "/ledgers?bookie=bk-9&state=closed": (
        Line("curl 'API/ledgers?state=closed&bookie=bk-9'", '"ledgers":', "Ledger"),
    ),
    "/ledgers/bad": (
        Line("rollbook recovery ls --failed", "LEDGER_ID", "has found bad entries"),
        Line("curl API/ledgers/bad", '"entries":[]', "has found bad entries"),
    ),
    "/ledgers/0": (
        Line("rollbook ledger show 0", "3/3/2", "E/W/A 3/3/2"),
        Line(
            "rollbook ledger verify 0", "VERDICT", "verify", page="/operations", button="Verify now"
        ),
        Line("curl API/ledgers/0", '"quorum":"3/3/2"', "E/W/A 3/3/2"),
        Line("curl -X POST API/ledgers/0:verify", '"kind":"verify"', "verify", page="/operations"),
    ),
    "/operations": (Line("curl API/operations", '"kind":"verify"', "verify ledger_id 0"),),
    "/metadata": (),  # No command shows the metadata.
    "/events": (Line("curl API/events", "is registered", "Bookie bk-9 is registered."),),
    "/events?kind=bookie-back&bookie=bk-9": (
        Line(
            "curl 'API/events?kind=bookie-back&bookie=bk-9'",
            "is registered",
            "Bookie bk-9 is registered.",
        ),
    ),
    "/callbacks": (
        Line("curl API/callbacks", '"url":"http://127.0.0.1:9/hook"', "http://127.0.0.1:9/hook"),
        Line(
            'curl -X POST --json \'{"url": "https://hooks.example.com/rollbook", "kinds": ["lifecycle"]}\' API/callbacks',
            "is not one of callback_hosts",
            "is not one of callback_hosts",
            code=400,
            button="Make",
            field=("url", "https://hooks.example.com/rollbook"),
        ),
    ),
    "/callback?id=CALLBACK": (
        Line("curl API/callbacks/CALLBACK", '"url":"http://127.0.0.1:9/hook"', "127.0.0.1:9/hook"),
        Line("curl API/callbacks/CALLBACK/deliveries", '"waiting":0', "0 events are waiting"),
        Line("curl -X POST API/callbacks/CALLBACK:test", "given-up", "given-up"),
        Line(
            "curl -X DELETE API/callbacks/CALLBACK", "", "No callback was made.", page="/callbacks"
        ),
    ),
    "/bookies": (
        Line("rollbook cluster info", "bk-9", "bk-9 writable active"),
        Line("curl API/bookies", '"id":"bk-9"', "bk-9 writable active"),
    ),
    "/recovery": (
        Line("rollbook recovery status", "enabled", "Repair enabled"),
        Line("rollbook recovery ls", "LEDGER_ID", "Nothing is to be copied."),
        Line("rollbook recovery audit", "recovery-1", "recovery-1 was asked.", button="Audit now"),
        Line("curl API/recovery", '"autorecovery":"enabled"', "Repair enabled"),
        Line(
            "curl -X POST API/recovery:audit",
            '"recovery-1"',
            "recovery-1 was asked.",
            button="Audit now",
        ),
        Line(
            "curl -X PUT --json '{\"enabled\": false}' API/recovery/switch",
            '"enabled":false',
            "Resume repair",
        ),
        Line(
            "curl -X PUT --json '{\"delay_s\": 300}' API/recovery/delay",
            '"delay_s":300',
            "replaced 300 s",
            first="curl -X PUT --json '{\"delay_s\": 7}' API/recovery/delay",
        ),
        Line(
            "curl -X PUT --json '{\"bytes_per_s\": 67108864}' API/recovery/rate",
            '"bytes_per_s":67108864',
            "67108864 bytes/s",
            first="curl -X PUT --json '{\"bytes_per_s\": 7}' API/recovery/rate",
        ),
    ),
    # Repair is paused here, so that a drain does not end before it is cancelled.
    "/bookie?id=bk-9": (
        Line("rollbook bookie drain bk-9", "draining", "Lifecycle draining"),
        Line("rollbook bookie undrain bk-9", "active", "Lifecycle active"),
        Line(
            "rollbook bookie safe-to-remove bk-9",
            "bk-9 (active",
            "bk-9 cannot be removed safely yet",
            code=5,
            button="Safe to remove?",
        ),
        Line(
            "rollbook bookie remove bk-9",
            "bk-9 still runs",
            "bk-9 still runs",
            code=2,
            button="Remove",
            field=("typed", "bk-9"),
        ),
        Line("curl API/bookies/bk-9/lifecycle", '"state":"active"', "Lifecycle active"),
        Line(
            'curl -X PUT --json \'{"state": "draining"}\' API/bookies/bk-9/lifecycle',
            '"state":"draining"',
            "Lifecycle draining",
        ),
        Line(
            'curl -X PUT --json \'{"state": "active"}\' API/bookies/bk-9/lifecycle',
            '"state":"active"',
            "Lifecycle active",
        ),
        Line(
            'curl -X POST --json \'{"bookies": ["bk-9"]}\' API/bookies:safe-to-remove',
            '"safe_to_remove":false',
            "bk-9 cannot be removed safely yet",
            button="Safe to remove?",
        ),
        Line(
            "curl -X DELETE API/bookies/bk-9",
            "bk-9 still runs",
            "bk-9 still runs",
            code=400,
            button="Remove",
            field=("typed", "bk-9"),
        ),
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not curl.is_there():
        pytest.skip(curl.missing())
    with running_site(tmp_path_factory.mktemp("same-as")) as site:
        with rollbook.connect(f"log://{site.logs}") as client:
            log = client.open("orders", create=True)
            log.append(b"tea")
            log.cursor("billing").commit(0)
            client.open("shop/returns", create=True).append(b"cup")
        yield site


@pytest.fixture(scope="module")
def callback(site: Site) -> str:
    """A callback for events that do not happen here, so no delivery waits."""
    wanted = json.dumps({"url": "http://127.0.0.1:9/hook", "kinds": ["bad-ledger"]})
    made = _type(site, f"curl --json '{wanted}' API/callbacks", "")
    found: str = json.loads(made.stdout)["id"]
    return found


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page(patience_s=PATIENCE_S) as page:
        yield page


def test_same_as_commands_cover_every_screen(site: Site) -> None:
    assert {each.removeprefix(site.url) for each in site.screens} <= LINES.keys()


@pytest.mark.parametrize("path", LINES, ids=[path or "/" for path in LINES])
def test_same_as_command_does_what_its_screen_does(
    site: Site, callback: str, page: Page, path: str
) -> None:
    path, lines = path.replace("CALLBACK", callback), LINES[path]
    shown = re.findall("<code>([^<]+)</code>", _html(site, path).rpartition("<h2>Same as</h2>")[2])
    names = [_named(site, unescape(each), callback) for each in shown]
    assert names == [line.typed for line in lines]
    for typed, line in zip(map(unescape, shown), lines, strict=True):
        if line.first:
            _type(site, line.first, callback)
        done = _type(site, typed, callback)
        said = (done.stdout + done.stderr).decode()
        assert line.prints in said, typed
        assert done.returncode == line.code, (typed, said)
        if line.button:
            page.open(f"{site.url}{path}")
            _press(page, line)
        if line.button and not line.page:
            page.wait_for(line.shown)
        else:
            _wait_until_shown(site, line.page or path, line.shown)


def test_same_as_commands_remove_bookies_that_are_down(site: Site) -> None:
    """The command and curl each remove a bookie without entries, and the screen drops it."""
    for name, line in (
        ("bk-7", "rollbook bookie remove bk-7"),
        ("bk-8", "curl -X DELETE API/bookies/bk-8"),
    ):
        child = site.start_bookie(name)
        _wait_until_shown(site, "/bookies", f"{name} writable")
        child.kill()
        _wait_until_shown(site, "/bookies", f"{name} down")
        shown = map(unescape, re.findall("<code>([^<]+)</code>", _html(site, f"/bookie?id={name}")))
        (typed,) = (each for each in shown if _named(site, each, "") == line)
        done = _type(site, typed, "")
        assert done.returncode == 0, done.stdout + done.stderr
        due = time.monotonic() + PATIENCE_S
        while name in _text(site, "/bookies"):
            assert time.monotonic() < due
            time.sleep(0.1)


def _press(page: Page, line: Line) -> None:
    """Fills in `field`, if any, and presses the button."""
    find = (
        "[...document.querySelectorAll('form')].find(each => "
        f"each.querySelector('button')?.innerText === {json.dumps(line.button)})"
    )
    page.wait_until(f"document.readyState === 'complete' && !!({find})")
    name, value = line.field
    if name:
        page.run(f"({find}).elements[{json.dumps(name)}].value = {json.dumps(value)}")
    page.run(f"({find}).querySelector('button').click()")


def _named(site: Site, line: str, callback: str) -> str:
    for flag in (f" --metadata {site.metadata}", f" --server log://{site.logs}"):
        line = line.removesuffix(flag)
    line = line.replace(f"http://{site.http}/api/v1", "API").replace(
        f"http://{site.rest}/v1", "LOGS"
    )
    return line.replace(callback, "CALLBACK") if callback else line


def _type(site: Site, line: str, callback: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the command; the return code is its exit code, or the HTTP status of an error."""
    line = line.replace("API", f"http://{site.http}/api/v1").replace(
        "LOGS", f"http://{site.rest}/v1"
    )
    line = line.replace("CALLBACK", callback)
    program, *words = shlex.split(line)
    if program == "rollbook":
        return commands.run(*words, *(["--yes"] if words[:2] == ["bookie", "remove"] else []))
    mark = "\nstatus "
    ask = ["sh", "-euc", line.replace("curl ", f"curl -sS -w '{mark}%{{http_code}}' ", 1)]
    done = subprocess.run(ask, capture_output=True, check=True, timeout=PATIENCE_S)
    text, _, status = done.stdout.decode().rpartition(mark)
    code = int(status) if int(status) >= 400 else 0
    return subprocess.CompletedProcess(ask, code, text.encode(), done.stderr)


def _html(site: Site, path: str) -> str:
    with urllib.request.urlopen(f"{site.url}{path}", timeout=PATIENCE_S) as answer:
        found: str = answer.read().decode()
        return found


def _text(site: Site, path: str) -> str:
    """Returns the visible text in one line, without the "same as" commands."""
    main = _html(site, path).partition("<main")[2].partition("<footer")[0]
    return " ".join(unescape(re.sub("<[^>]*>", " ", main)).split())


def _wait_until_shown(site: Site, path: str, text: str) -> None:
    due = time.monotonic() + PATIENCE_S
    while text not in (shown := _text(site, path)):
        assert time.monotonic() < due, (text, shown)
        time.sleep(0.1)

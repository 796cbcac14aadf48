"""Cluster events can be listed and are sent to a URL. Uses `rollbook dev` and an HTTP receiver."""

import hashlib
import hmac
import json
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.regressions.defects import defect
from tests.support.dev import running_dev

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_dev(tmp_path_factory.mktemp("dev") / "data", bookies=1) as dev:
        found = re.search(r"^dashboard +(http://\S+)$", dev.said, re.MULTILINE)
        assert found
        yield f"{found[1]}/api/v1"


def ask(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def pause_and_resume(api: str) -> None:
    """Pauses and resumes recovery, each until the change is listed as an event."""
    for enabled, kind in ((False, "recovery-paused"), (True, "recovery-resumed")):
        before = newest(api, kind)
        assert ask("PUT", f"{api}/recovery/switch", {"enabled": enabled})[0] == 200
        deadline = time.monotonic() + PATIENCE_S
        while newest(api, kind) == before:
            assert time.monotonic() < deadline, f"no event {kind}"
            time.sleep(0.1)


def newest(api: str, kind: str) -> list[Any]:
    """The newest event of this kind, in a list; an empty list if there is none."""
    status, found = ask("GET", f"{api}/events?kind={kind}&limit=1")
    assert status == 200, found
    events: list[Any] = found["events"]
    return events


@defect(
    "no-list-of-past-events",
    "Past losses and drains of bookies were not listed anywhere.",
)
def test_cluster_events_are_listed(api: str) -> None:
    pause_and_resume(api)
    (event,) = newest(api, "recovery-resumed")
    assert event["text"] == "Repair goes on."
    status, found = ask("GET", f"{api}/events")
    assert status == 200, found
    assert {"recovery-paused", "auditor"} <= {each["kind"] for each in found["events"]}


@defect(
    "no-callbacks-for-events",
    "A program had to poll to learn that a bookie was lost or drained.",
)
def test_callbacks_receive_signed_events_in_order(api: str, tmp_path: Path) -> None:
    received: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        kinds = ["recovery-paused", "recovery-resumed"]
        status, made = ask("POST", f"{api}/callbacks", {"url": url, "kinds": kinds})
        assert status == 201, made
        here = f"{api}/callbacks/{made['id']}"
        status, tried = ask("POST", f"{here}:test")
        assert (status, tried["outcome"]) == (200, "delivered"), tried
        pause_and_resume(api)
        seen: list[str] = []
        while len(seen) < 3:
            headers, body = received.get(timeout=PATIENCE_S)
            signed = headers["rollbook-time"].encode() + b"." + body
            expected = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
            assert headers["rollbook-signature"] == f"v1={expected}"
            seen.append(json.loads(body)["kind"])
        assert seen == ["test", *kinds]
        for refused in ("https://169.254.169.254/latest", "http://10.0.0.1/", "file:///etc/passwd"):
            assert ask("POST", f"{api}/callbacks", {"url": refused})[0] == 400
        assert ask("DELETE", here)[0] == 200
        server.shutdown()

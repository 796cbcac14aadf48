"""Chromium's own EventSource, on a page of the log server that it follows.

Chromium is controlled through two pipes (`--remote-debugging-pipe`) with JSON messages that end
with a NUL. The page is any text of the server, so that the script has the server's origin, like a
user's page behind the same proxy.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from tests.tally import missing_piece

HOW_TO_ENABLE: Final = "apt-get install --no-install-recommends chromium-headless-shell"

_NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
_PATIENCE_S: Final = 60.0
_SCRIPT: Final = """
    window.values = [];
    window.connections = 0;
    window.source = new EventSource(%s);
    source.onopen = () => connections++;
    source.addEventListener("records", event =>
        values.push(...JSON.parse(event.data).records.map(record => record.data)));
"""
_KEY_CODES: Final = {"Tab": 9, "Enter": 13}
_SHIFT: Final = 8  # The bit of Chromium's modifiers for the shift key.
_CLOSED: Final = 2  # `readyState` of an EventSource that has given up.


def path() -> str | None:
    """The path of a Chromium that runs.

    On some systems `chromium` only prints how to install it.
    """
    return next(filter(_runs, filter(None, map(shutil.which, _NAMES))), None)


def _runs(program: str) -> bool:
    silent = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=silent,
            stdout=silent,
            stderr=silent,
            check=False,
            timeout=_PATIENCE_S,
        )
    except (
        OSError,
        subprocess.TimeoutExpired,
    ):  # The file is not a program.
        return False
    return done.returncode == 0


def missing() -> str:
    return missing_piece("browser", "there is no Chromium", HOW_TO_ENABLE)


class Browser:
    """Has the interface of `EventSource` in `tests.support`."""

    def __init__(self, place: str, records: str) -> None:
        program = path()
        assert program is not None
        self._url = f"http://{place}"
        self._folder = tempfile.TemporaryDirectory(prefix="rb-browser-", ignore_cleanup_errors=True)
        self._pipe = _Pipe([program, *_FLAGS, f"--user-data-dir={self._folder.name}"])
        self._records = records

    def __enter__(self) -> Self:
        call = self._pipe.call
        page = call("Target.createTarget", url=f"{self._url}/healthz")["targetId"]
        found = call("Target.attachToTarget", targetId=page, flatten=True)
        self._pipe.session = found["sessionId"]
        deadline = time.monotonic() + _PATIENCE_S
        while self._evaluate("location.origin + document.readyState") != f"{self._url}complete":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self._evaluate(_SCRIPT % json.dumps(self._records))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe.close()
        self._folder.cleanup()

    @property
    def values(self) -> list[str]:
        found: list[str] = json.loads(self._evaluate("JSON.stringify(values)"))
        return found

    @property
    def connections(self) -> int:
        return int(self._evaluate("connections"))

    @property
    def refusals(self) -> list[int]:
        """[0] if the EventSource has given up: a page does not learn the status."""
        return [0] if self._evaluate("source.readyState") == _CLOSED else []

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while (found := int(self._evaluate("values.length"))) < count:
            assert time.monotonic() < deadline, f"{found} records of {count} have come"
            assert not self.refusals, "it has given up"
            time.sleep(0.05)

    def _evaluate(self, script: str) -> Any:
        found = self._pipe.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


class Page:
    """A page of Chromium on which a test clicks and types. Keeps Chromium's complaints."""

    def __init__(self, *flags: str, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        program = path()
        assert program is not None
        self._folder = tempfile.TemporaryDirectory(prefix="rb-browser-", ignore_cleanup_errors=True)
        self._pipe = _Pipe([program, *_FLAGS, *flags, f"--user-data-dir={self._folder.name}"])

    def __enter__(self) -> Self:
        call = self._pipe.call
        page = call("Target.createTarget", url="about:blank")["targetId"]
        found = call("Target.attachToTarget", targetId=page, flatten=True)
        self._pipe.session = found["sessionId"]
        for domain in ("Log", "Runtime", "Page", "Network"):
            call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._folder.cleanup()

    @property
    def complaints(self) -> list[str]:
        """Errors of the console and of the page's policy, and failed or refused requests."""
        found = []
        for event in self._pipe.events:
            about, method = event["params"], event["method"]
            if method in ("Log.entryAdded", "Runtime.exceptionThrown", "Network.loadingFailed"):
                found.append(f"{method}: {json.dumps(about)}")
            if method == "Network.responseReceived" and about["response"]["status"] >= 400:
                found.append(f"{about['response']['status']} {about['response']['url']}")
        return found

    def open(self, url: str) -> None:
        self._pipe.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        return self._value_of(script)

    def run_to_its_end(self, script: str) -> Any:
        """Runs a script that returns a promise, and returns the promise's value."""
        return self._value_of(script, awaitPromise=True)

    def _shown(self) -> str:
        try:
            return str(self.run("document.body ? document.body.innerText : ''"))
        except _PageLeft:  # The next page is the one that is awaited.
            return ""

    def _value_of(self, script: str, **how: Any) -> Any:
        found = self._pipe.call("Runtime.evaluate", expression=script, returnByValue=True, **how)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, text: str, patience_s: float = 0.0) -> None:
        """Waits until the page shows the text."""
        deadline = time.monotonic() + (patience_s or self._patience_s)
        while text not in (shown := self._shown()):
            assert time.monotonic() < deadline, (text, shown)
            time.sleep(0.02)

    def wait_until(self, script: str, patience_s: float = 0.0) -> Any:
        """Waits until the script's value is true, and returns it."""
        deadline = time.monotonic() + (patience_s or self._patience_s)
        found = None
        while not found:
            assert time.monotonic() < deadline, script
            time.sleep(0.02)
            with suppress(_PageLeft):  # The next page is the one that is awaited.
                found = self.run(script)
        return found

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of Chromium's protocol for this page."""
        return self._pipe.call(method, **parameters)

    def forget_complaints(self) -> None:
        """Drops the complaints until now, which the test expected."""
        self.run("0")  # Earlier events arrive before this response.
        self._pipe.events.clear()

    def click_link(self, text: str) -> None:
        """Clicks with the mouse on the middle of the link when it is visible."""
        find = f"[...document.querySelectorAll('a')].find(each => each.innerText === {json.dumps(text)})"
        middle = f"""(at => {{
            const box = at?.getBoundingClientRect();
            return box && box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
        }})({find})"""
        x, y = self.wait_until(middle)
        about = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **about)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **about)

    def is_in_sight(self, text: str) -> bool:
        """Whether an element with exactly this text is visible without scrolling."""
        boxes = f"""[...document.querySelectorAll('*')]
            .filter(each => each.innerText?.trim() === {json.dumps(text)})
            .map(each => each.getBoundingClientRect())"""
        return bool(
            self.run(
                f"{boxes}.some(each => each.height && each.top >= 0 && each.bottom <= innerHeight)"
            )
        )

    def press(self, key: str, text: str = "", *, shift: bool = False) -> None:
        """Presses a key, such as Tab or Enter."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": _KEY_CODES.get(key, 0)}
        modifiers = _SHIFT if shift else 0
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, modifiers=modifiers, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **about)


class _PageLeft(Exception):
    """The page was left before a call to it was answered."""


class _Pipe:
    """Sends calls and receives their responses. Keeps events for `Page`."""

    def __init__(self, command: list[str]) -> None:
        self.session = ""
        self.events: list[dict[str, Any]] = []
        self._calls = 0
        self._pending = b""
        # Chromium expects its pipes as file descriptors 3 and 4.
        moved = ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh")
        self._process = subprocess.Popen(
            [*moved, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        call: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self.session:
            call["sessionId"] = self.session
        assert self._process.stdin
        self._process.stdin.write(json.dumps(call).encode() + b"\0")
        while (message := self._next()).get("id") != self._calls:
            if "method" in message:
                self.events.append(message)
        if "navigated or closed" in message.get("error", {}).get("message", ""):
            raise _PageLeft(method)
        assert "error" not in message, message
        found: dict[str, Any] = message["result"]
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            assert self._process.stdout
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            assert chunk, "the browser has ended"
            self._pending += chunk
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

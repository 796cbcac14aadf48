"""What a new user does (`python -m tests newcomer`): the README, the tutorial and the page about
HTTP.

After that, on a second cluster, the steps of `first_day.py` and the way from the dashboard to a
record.

Every block and indented command runs unchanged, in order, in a fresh folder and on one cluster.
Only `rollbook dev` is not run, because it runs already, and addresses are replaced by those of the
cluster. Each step reports its time. The first failure ends the run, because a user would be stuck
there.
"""

import os
import re
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import first_day
from tests.rest import browser
from tests.support import pages
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY
from tests.tally import Tally

README: Final = REPOSITORY / "README.md"
_PAGES: Final = ("tutorial.md", "http.md")
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```|((?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_SHELLS: Final = ("sh", "bash")
_LOGS: Final = "127.0.0.1:7400"
_HTTP: Final = "127.0.0.1:7480"
_DASHBOARD_SHOWN: Final = re.compile(r"^dashboard +(http://\S+)$", re.MULTILINE)
_LINKS: Final = ("Logs", "default/orders")  # Links to click from the overview to a record.
_CLICKS_MAX: Final = 2
_HTTP_SHOWN: Final = re.compile(r"^rest +http://(\S+)/v1$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    where: str
    is_program: bool
    text: str

    @property
    def title(self) -> str:
        return f"{self.where}: {self.text.strip().splitlines()[0][:60]}"


def steps() -> Iterator[Step]:
    """All steps in reading order; of the README only the first five minutes."""
    first = README.read_text().partition("\n## First five minutes\n")[2].partition("\n## ")[0]
    texts = {"README.md": first}
    texts |= {name: (REPOSITORY / "docs" / name).read_text() for name in _PAGES}
    for name, text in texts.items():
        blocks = list(_blocks(text))
        assert blocks, name
        shell = [found for kind, found in blocks if kind != "python"]
        if name == "http.md":  # Its blocks share a shell variable.
            yield Step(name, is_program=False, text="".join(shell))
        else:
            yield from (Step(name, kind == "python", found) for kind, found in blocks)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    for kind, found, indented in _BLOCK.findall(text):
        if kind in (*_SHELLS, "python"):
            yield kind, found
        elif indented and not indented.endswith(" rollbook dev\n"):
            yield "sh", textwrap.dedent(indented)


def run(say: Callable[[str], None]) -> Tally:
    tally = Tally("steps")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_dev(folder / "rollbook-data", bookies=3) as dev:
            say(f"{time.monotonic() - began:6.1f} s  rollbook dev")
            (http,) = _HTTP_SHOWN.findall(dev.said)
            environment = {
                **os.environ,
                "ROLLBOOK_SERVER": f"log://{dev.address}",
                "XDG_CONFIG_HOME": name,
            }
            for step in steps():
                text = step.text.replace(_LOGS, dev.address).replace(_HTTP, http)
                # Otherwise error responses would pass.
                text = text.replace("curl http:", "curl --fail http:")
                since = time.monotonic()
                try:
                    if step.is_program:
                        pages.run_program(text, folder)
                    else:
                        pages.run(["sh", "-euc", text], folder, environment)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    tally.failed += 1
                    say(f"{step.title}\n{error}")
                    break
                tally.passed += 1
                say(f"{time.monotonic() - since:6.1f} s  {step.title}")
        if not tally.failed:
            _spend_first_day(folder, tally, say)
        if not tally.failed:
            _find_a_record(folder, tally, say)
    say(f"{time.monotonic() - began:6.1f} s  from the first command to the last")
    return tally


def _spend_first_day(folder: Path, tally: Tally, say: Callable[[str], None]) -> None:
    with running_dev(folder / "first-day-data", bookies=3) as dev:
        (http,) = _HTTP_SHOWN.findall(dev.said)
        environment = {
            **os.environ,
            "ROLLBOOK_SERVER": f"log://{dev.address}",
            "XDG_CONFIG_HOME": str(folder / "first-day-contexts"),
        }
        for step in first_day.steps(http):
            since = time.monotonic()
            try:
                first_day.take(step, folder, environment)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                tally.failed += 1
                say(str(error))
                return
            tally.passed += 1
            say(f"{time.monotonic() - since:6.1f} s  {step.command[:70]}")


def _find_a_record(folder: Path, tally: Tally, say: Callable[[str], None]) -> None:
    """Finds a record in a browser by clicking on links only.

    Measures the seconds from opening the URL that `rollbook dev` prints until a record is visible
    without scrolling. Before that, a record is appended as in the tutorial.
    """
    if browser.path() is None:
        tally.skipped.append(browser.missing())
        return
    record = "tea and milk"
    with browser.Page() as page, running_dev(folder / "clicks-data", bookies=3) as dev:
        since = time.monotonic()
        (url,) = _DASHBOARD_SHOWN.findall(dev.said)
        environment = {**os.environ, "ROLLBOOK_SERVER": f"log://{dev.address}"}
        append = f"rollbook log append orders '{record}' --create"
        try:
            pages.run(["sh", "-euc", append], folder, environment)
            appended = time.monotonic()
            page.open(url)
            page.wait_for("Overview")
            clicks = 0
            for link in _LINKS:
                page.click_link(link)
                clicks += 1
                page.wait_until(f"document.querySelector('h1')?.innerText.includes('{link}')")
            page.wait_for(record)
            assert page.is_in_sight(record), f"{record!r} is not in sight after {clicks} clicks"
            assert clicks <= _CLICKS_MAX, f"it took {clicks} clicks"
            assert not page.complaints
        except (AssertionError, subprocess.TimeoutExpired) as error:
            tally.failed += 1
            say(f"from the dashboard's URL to a record\n{error}")
            return
        now = time.monotonic()
    tally.passed += 1
    say(
        f"{now - since:6.1f} s  from the dashboard's URL to a record in {clicks} clicks; "
        f"{now - appended:.1f} s from the page"
    )

"""`rollbook server all` with tokens and TLS: by keyboard alone, and without scripts."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.rest.browser import Page
from tests.support import commands, processes
from tests.support.certificates import Authority

_TABS_MAX = 60


@dataclass(frozen=True)
class Guarded:
    url: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tls = Authority.make(folder).issue("server", "IP:127.0.0.1")
    access, tokens = str(folder / "access.toml"), {}
    for name, rights in (
        ("anna", ("--operate", "--read", "*", "--append", "*", "--admin", "default/*")),
        ("otto", ("--monitor",)),
    ):
        done = commands.run("access", "add", name, "--file", access, *rights)
        assert done.returncode == 0, done.stderr
        tokens[name] = done.stdout.decode().split()[0]
    with processes.family() as children:
        child = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "all",
            "--bookies",
            "4",
            "--data",
            folder / "d",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--log-level",
            "error",
            "--tls-certificate",
            tls.certificate,
            "--tls-key",
            tls.key,
            "--access-file",
            access,
            environment={"PATH": os.environ["PATH"]},
        )
        said = ""
        while not (line := child.line()).startswith("ready"):
            said += line + "\n"
        found = re.search(r"dashboard (\S+)", said)
        assert found is not None, said
        yield Guarded(f"{found[1]}/dashboard", tokens)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page("--ignore-certificate-errors", patience_s=20) as page:
        yield page


def _tab_to(page: Page, found: str) -> None:
    """Presses Tab until `found` is true, a condition on the active element, which it calls `at`."""
    for _ in range(_TABS_MAX):
        page.press("Tab")
        if page.run(f"(at => {found})(document.activeElement)"):
            return
    raise AssertionError(f"not reached: {found}")


def test_bookie_is_drained_by_keyboard_alone(guarded: Guarded, page: Page) -> None:
    """DB2: scripts cannot read the cookie, and the token is not in the page."""
    page.open(f"{guarded.url}/bookies")
    page.wait_for("Show the token")
    _tab_to(page, "at.name === 'token'")
    page.call("Input.insertText", text=guarded.tokens["anna"])
    page.press("Enter", "\r")
    page.wait_for("bk-4")
    assert page.run("document.cookie") == ""
    _tab_to(page, "at.innerText === 'bk-4'")
    page.press("Enter", "\r")
    page.wait_for("It takes no entries from now on")
    _tab_to(page, "at.innerText === 'Drain'")
    page.press("Enter", "\r")
    page.wait_for("bk-4 is drain")
    assert guarded.tokens["anna"] not in page.run("document.documentElement.outerHTML")
    _tab_to(page, "at.innerText === 'Undrain'")
    page.press("Enter", "\r")
    page.wait_for("bk-4 is active.")
    assert not page.complaints


def test_log_is_created_appended_to_and_sealed_in_the_browser(guarded: Guarded, page: Page) -> None:
    page.open(f"{guarded.url}/logs")
    page.wait_for("No log yet.")
    _fill(page, "create", name="orders")
    page.wait_for("orders is made.")
    _fill(page, "append", value="mine alone")
    page.wait_for("Appended at 0.")
    page.wait_for("mine alone")
    _fill(page, "seal", typed="default/orders")
    page.wait_for("Sealed at 1.")
    assert not page.complaints


def test_sign_in_and_records_work_without_scripts(guarded: Guarded) -> None:
    """DB4: the page reloads instead; a principal without the right to read sees no record."""
    with Page("--ignore-certificate-errors", patience_s=20) as bare:
        bare.call("Emulation.setScriptExecutionDisabled", value=True)
        for name, shown in (("anna", "mine alone"), ("otto", "otto has no right to read")):
            bare.open(f"{guarded.url}/sign-in?next=/log%3Fname%3Dorders")
            bare.wait_for("Show the token")
            _tab_to(bare, "at.name === 'token'")
            bare.call("Input.insertText", text=guarded.tokens[name])
            bare.press("Enter", "\r")
            bare.wait_for(shown)
            assert bare.run("typeof htmx") == "undefined"
            assert bare.run("!!document.querySelector('meta[http-equiv=refresh]')") == (
                name == "anna"
            )
            assert ("mine alone" in bare.run("document.body.innerText")) == (name == "anna")


def _fill(page: Page, act: str, **fields: str) -> None:
    find = f"document.querySelector('input[name=act][value={act}]')?.form"
    page.wait_until(f"!!({find})")
    for name, value in fields.items():
        page.run(f"({find}).elements[{json.dumps(name)}].value = {json.dumps(value)}")
    page.run(f"({find}).querySelector('button').click()")

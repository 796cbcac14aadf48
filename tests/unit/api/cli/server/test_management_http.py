"""HTTP management of running servers: for example, a bookie is drained over HTTP."""

import asyncio
import json
import os
import random
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

import rollbook
from rollbook.api.cli.server.commands import group
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import BadConfig
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import commands, curl, pages, processes
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY

PATIENCE_S = 60.0
USUAL = "http://127.0.0.1:7500/api/v1"


def drain_as_an_operation() -> str:
    """The section's last script; `tests/unit/docs/test_scale_down_script.py` runs the earlier ones."""
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    section = text.partition("\n## A cluster scaled down by curl\n")[2].partition("\n## ")[0]
    return str(re.findall(r"(?ms)^```bash\n(.*?)^```", section)[-1])


def ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"}, method=method)
    with urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def test_a_bookie_is_drained_over_http_while_a_log_is_written(tmp_path: Path) -> None:
    if why := curl.missing_with_jq():
        pytest.skip(why)
    with running_dev(tmp_path / "data", 4) as dev:
        found = re.search(r"^dashboard (http://127\.0\.0\.1:\d+)$", dev.said, re.MULTILINE)
        assert found, dev.said
        api = f"{found[1]}/api/v1"
        (rest,) = re.findall(r"^rest +(\S+)/v1$", dev.said, re.MULTILINE)
        browser = Request(f"{rest}/", headers={"accept": "text/html,*/*;q=0.8"})
        with urlopen(browser, timeout=PATIENCE_S) as page:  # A browser is redirected.
            assert page.url == f"{found[1]}/dashboard"
        with rollbook.connect(f"log://{dev.address}") as client:
            log = client.open("orders", create=True)
            log.append(b"before")
            (named,) = ask("GET", f"{api}/ledgers?state=open")["ledgers"]
            ensemble = ask("GET", f"{api}/ledgers/{named['ledger_id']}")["fragments"][0]["ensemble"]
            bookie = f"{api}/bookies/{ensemble[0]}"
            script = drain_as_an_operation().replace("bk-4", ensemble[0]).replace(USUAL, api)
            with ThreadPoolExecutor(1) as pool:
                shell = pool.submit(
                    pages.run, ["sh", "-euc", f"{script}\n{script}"], tmp_path, os.environ
                )
                while not shell.done():
                    log.append(b"meanwhile")
                said = shell.result()
            check_admin_pages(bookie)
            with pytest.raises(HTTPError) as refused:
                ask("DELETE", bookie)
            assert json.loads(refused.value.read())["detail"] == f"{ensemble[0]} still runs"
            first, again = (json.loads(each) for each in said.splitlines() if each[:1] == "{")
            assert first == again, "the same key returns the same operation"
            assert first["result"] == {"drained": [ensemble[0]]}
            assert next(iter(log.read(0, 1))).value == b"before"


def check_admin_pages(bookie: str) -> None:
    """BL29: bookies of `rollbook dev` have no HTTP port of their own."""
    for page in ("status", "state", "gc", "space", "compaction", "scrub"):
        assert "answer" in ask("GET", f"{bookie}/pages/{page}"), page
    ask("PUT", f"{bookie}/pages/suspend-compaction", {"suspendMajor": True})
    suspended = {"isMajorGcSuspended": True, "isMinorGcSuspended": False}
    assert ask("GET", f"{bookie}/pages/compaction")["answer"] == suspended
    with pytest.raises(HTTPError) as refused:
        ask("PUT", f"{bookie}/pages/readonly", {"readOnly": "perhaps"})
    assert (refused.value.code, json.load(refused.value)["reason"]) == (400, "INVALID")


def make_metadata(folder: Path) -> str:
    url = f"sqlite://{folder}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    return url


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--http", ":0", "--http-token-file", "token"], "open to the network"),
        (["--http", ":0", "--insecure", "--http-token-file", "token"], "open to the network"),
        (["--http", ":0"], "open to the network"),
        (["--only-http"], "only_http needs http"),
        (["--http", "127.0.0.1:0", "--http-tls-key", "x"], "http_tls_certificate"),
    ],
)
def test_unsafe_or_inconsistent_http_flags_are_refused(flags: list[str], said: str) -> None:
    """MG2: the flags are refused before any server starts."""
    command = ["recovery", "--metadata", "sqlite:///m", *flags]
    result = CliRunner().invoke(group, command, standalone_mode=False)
    assert isinstance(result.exception, BadConfig)
    assert said in str(result.exception)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--http", "nonsense:x"], "not host:port"),
        (["--http", "0.0.0.0:0"], "open to the network"),
        (["--http", "0.0.0.0:0", "--insecure"], "open to the network"),
        (["--http", "0.0.0.0:0", "--token-file", "token"], "open to the network"),
    ],
)
def test_server_all_refuses_a_bad_address_before_it_starts(
    flags: list[str], said: str, tmp_path: Path
) -> None:
    """MG2."""
    command = ["all", "--data", str(tmp_path / "data"), *flags]
    result = CliRunner().invoke(group, command, standalone_mode=False)
    assert isinstance(result.exception, BadConfig)
    assert said in str(result.exception)
    assert "--insecure" not in result.exception.next_step
    assert not (tmp_path / "data").exists()


def test_drain_continues_after_its_server_is_killed(tmp_path: Path) -> None:
    """OP4: the first server begins the operation but has no steward; the second completes it."""
    url = make_metadata(tmp_path)
    command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "recovery")
    where = ("--metadata", url, "--http", "127.0.0.1:0", "--log-level", "error")
    short = {"ROLLBOOK_SESSION_TIMEOUT_S": "3"}
    with processes.family() as children:

        def start(*flags: str) -> tuple[Any, str]:
            child = children.start(*command, *where, *flags, environment=short)
            found = re.search(r"http on ([\d.:]+)", child.line(PATIENCE_S))
            assert found
            return child, f"http://{found[1]}/api/v1"

        def until(api: str, state: str) -> Any:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                with suppress(HTTPError):  # 503 while the store has no connection.
                    found = ask("GET", f"{api}/operations/{begun['id']}")
                    if found["state"] == state:
                        return found
                time.sleep(0.05)
            raise AssertionError(f"the operation was not {state} within {PATIENCE_S:g} s")

        first, api = start("--no-auditor", "--name", "first")
        directories = {"journal_dirs": ["/journal"], "ledger_dirs": ["/ledgers"]}
        cookie = ask("POST", f"{api}/cookies/bk-1:generate", directories)
        ask("PUT", f"{api}/cookies/bk-1", {"text": cookie["text"]})
        begun = ask("POST", f"{api}/bookies:drain", {"bookies": ["bk-1"]})
        until(api, "running")
        first.kill()
        _, api = start("--name", "second")
        ended = until(api, "done")
    assert ended["result"] == {"drained": ["bk-1"]}
    assert ended["created_ms"] == begun["created_ms"]


def test_a_missing_access_file_is_named_before_the_server_has_started(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    where = ("--metadata", make_metadata(tmp_path), "--http", "127.0.0.1:0")
    done = commands.run("server", "recovery", *where, "--access-file", str(path))
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 2, said
    assert f"the access file {path} cannot be read: No such file or directory" in said
    assert f"rollbook access add NAME --file {path}" in said
    assert "recovery_server_started" not in said


def test_port_in_use_ends_with_usage_exit_code(tmp_path: Path) -> None:
    url = make_metadata(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        where = ("--http", f"127.0.0.1:{port}", "--only-http", "--log-level", "error")
        done = commands.run("server", "recovery", "--metadata", url, *where)
    said = done.stderr.decode()
    assert (done.returncode, "Traceback" in said) == (2, False), said
    assert f"error: cannot listen on 127.0.0.1:{port}" in said

"""The `rollbook cluster` commands on an embedded metadata store."""

import asyncio
import json
import sys
from pathlib import Path

from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.formats.cookie import Cookie
from rollbook.proto.formats.service_info import describe_bookie
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Address
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import commands

B1, B2, B3 = (BookieId(f"b{number}:3181") for number in (1, 2, 3))


async def run(*arguments: str) -> tuple[int, str, str]:
    environment = {"NO_COLOR": "1", "ROLLBOOK_METADATA": ""}
    done = await asyncio.to_thread(commands.run, "cluster", *arguments, environment=environment)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_cluster_is_initialised_once_and_shown(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    code, output, _ = await run("init", "--metadata", url, "-o", "json")
    assert code == 0
    made = json.loads(output)
    assert (made["layout"], made["own_root"]) == ("hierarchical", "/rollbook")

    code, output, _ = await run("info", "--metadata", url, "-o", "json")  # No server is running.
    assert (code, json.loads(output)) == (0, {**made, "bookies": []})

    async with await open_metadata_store(url, serve=True) as store:
        code, _, errors = await run("init", "--metadata", url)
        assert (code, "CLUSTER_EXISTS" in errors, "cluster info" in errors) == (4, True, True)

        cookies = CookieNodes(store, "/ledgers")
        for bookie in (B1, B2, B3):
            await cookies.create(Cookie(bookie, ("/journal",), ("/data",)))
        for bookie, standing in ((B1, RegisteredMode.WRITABLE), (B2, RegisteredMode.READ_ONLY)):
            info = describe_bookie(Address("h", 3181), incarnation="c0ffee")
            await BookieRegistration(store, "/ledgers", bookie, info, 1.0).register(standing)

        code, output, errors = await run("info", "--metadata", url, "-o", "json")
        assert (code, errors) == (0, "")
        shown = json.loads(output)
        bookies = shown.pop("bookies")
        assert shown == made
        assert [(each["id"], each["state"], each["address"]) for each in bookies] == [
            (B1, "writable", "h:3181"),
            (B2, "read-only", "h:3181"),
            (B3, "down", None),
        ]
        code, output, _ = await run("info", "--metadata", url)
        assert code == 0
        assert made["instance_id"] in output
        assert "b3:3181  down       -        -" in output


async def test_errors_have_an_exit_code_and_a_hint(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    cases = [
        (("info", "--metadata", url), 3, "cluster init"),
        (("info", "--metadata", "memory:"), 2, "sqlite:///path"),
        (("info", "--metadata", "zk://127.0.0.1:1/ledgers"), 5, "check the metadata URL"),
        (("info", "--metadata", "ftp://x"), 2, "zk://"),
        (("info", "--server", "log://127.0.0.1:1"), 5, "rollbook dev"),
        (("info", "--server", "x", "--metadata", url), 2, "either --metadata or --server"),
        (("init", "--metadata", "zk+flat://localhost/ledgers"), 2, "--layout: hierarchical"),
        (("init", "--metadata", url, "--layout", "flat"), 2, "longhierarchical"),
    ]
    for (arguments, expected, hint), (code, output, errors) in zip(
        cases, await asyncio.gather(*(run(*case[0]) for case in cases)), strict=True
    ):
        assert (code, output) == (expected, ""), arguments
        assert hint in errors, errors


async def test_full_disk_has_an_exit_code_and_a_short_error(tmp_path: Path) -> None:
    """The first command cannot create the store; the second cannot write its output."""
    command = f"{sys.executable} -m rollbook.api.cli.main cluster init --metadata"
    for script, expected in (
        (f"ulimit -f 8; {command} sqlite://{tmp_path}/never.db", 5),
        (f"{command} sqlite://{tmp_path}/made.db > /dev/full", 1),
    ):
        process = await asyncio.create_subprocess_shell(script, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
        assert process.returncode == expected, errors.decode()
        assert errors.startswith(b"error: "), errors.decode()
        assert len(errors.splitlines()) <= 3  # Error, outcome, next step.
    assert not (tmp_path / "never.db").exists()


async def test_every_help_ends_with_examples() -> None:
    for command in ((), ("init",), ("info",)):
        code, output, _ = await run(*command, "--help")
        assert code == 0
        heading, *examples = output.splitlines()[-4:]
        assert heading.strip() == "Examples:"
        assert all("rollbook cluster" in line for line in examples)


async def test_parent_directory_of_metadata_store_is_not_created(tmp_path: Path) -> None:
    """A missing directory usually means that a disk is not mounted or a path is misspelt."""
    code, output, errors = await run("init", "--metadata", f"sqlite://{tmp_path}/no/where/m.db")
    assert (code, output) == (2, "")
    assert f"try: mkdir -p {tmp_path}/no/where" in errors
    assert not (tmp_path / "no").exists()

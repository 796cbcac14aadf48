"""Output and errors of `rollbook bookie` on a stopped bookie's files and a running bookie."""

import asyncio
import hashlib
import io
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from rollbook.api.cli.bookie.command_table import group
from rollbook.api.cli.lazy_group import LazyGroup
from rollbook.api.rest.bookie_admin_server import AdminServer
from rollbook.api.rest.server import HttpConfig
from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.entry_log_footer import (
    TRAILER_BYTES,
    FooterBuilder,
    unpack_page,
    unpack_tables,
    unpack_trailer,
)
from rollbook.bookie.core.record_format import unpack_file_header
from rollbook.bookie.storage import Storage
from rollbook.proto import errors
from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.ports import Address
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.runtime.tls import TlsFiles
from tests.support.certificates import Authority
from tests.unit.api.rest.fake_admin import FakeAdmin
from tests.unit.bookie.test_storage import KEY, add


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keeps the logs of a server in this process out of a command's captured output."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    yield
    structlog.configure(**before)


LOOKING = ("info", "ledgers", "ledger", "journal", "entrylog", "mark", "verify")
TELLING = ("gc", "compact", "scrub", "readonly")
TOKEN = "0123456789abcdef-canary"


def run(*arguments: str, **environ: str) -> Result:
    """Run one command in this process; `exception` of the result is what the command raised."""
    clean = {name: None for name in os.environ if name.startswith("ROLLBOOK_")}
    return CliRunner().invoke(group, arguments, env={**clean, **environ}, standalone_mode=False)


def shown(*arguments: str, **environ: str) -> Any:
    found = run(*arguments, "-o", "json", **environ)
    if found.exception:
        raise found.exception
    return json.loads(found.stdout)


async def run_process(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rollbook.api.cli.main",
        "bookie",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    output, complaints = await process.communicate()
    assert process.returncode is not None
    assert b"Traceback" not in complaints, complaints.decode()
    return process.returncode, output.decode(), complaints.decode()


# --- A stopped bookie's files -----------------------------------------------------------------


def config_of(folder: Path) -> StorageConfig:
    return StorageConfig(
        f"{folder}/journal", (f"{folder}/a", f"{folder}/b"), journal_file_bytes=64 * 1024
    )


async def _make_store(folder: Path) -> None:
    """Make ledgers 1 to 3 of 30 entries each, in journals and entry logs; fence 2, delete 3."""
    disk, chance = SystemDisk(), random.Random(3)
    await Storage.make(disk, config_of(folder), chance)
    storage = await Storage.open(disk, config_of(folder), SystemClock(), chance)
    storage.start()
    for entry_id in range(30):
        await add(storage, *[(each, entry_id) for each in (1, 2, 3)], payload=bytes(3_000))
    await storage.fence(2, KEY)
    await storage.delete(3)
    while storage.stats.journal_files_waiting():
        await asyncio.sleep(0.01)
    await storage.close()
    disk.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bookie")
    asyncio.run(_make_store(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def files(folder: Path) -> list[str]:
    places = ("--journal-dir", "journal"), ("--ledger-dir", "a"), ("--ledger-dir", "b")
    return [word for flag, name in places for word in (flag, f"{folder}/{name}")]


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def unchanged(folder: Path) -> Iterator[None]:
    """B10: inspection changes no byte of a store."""
    before = fingerprint(folder)
    yield
    assert fingerprint(folder) == before


@pytest.mark.usefixtures("unchanged")
def test_info_counts_ledgers_doubts_and_entry_logs(folder: Path) -> None:
    info = shown("info", *files(folder))
    assert (info["ledgers_in_logs"], info["doubtful_ledgers"], info["doubts_everything"]) == (
        3,
        0,
        False,
    )
    assert info["entry_logs"] >= 3


@pytest.mark.usefixtures("unchanged")
def test_mark_equals_the_mark_in_info(folder: Path) -> None:
    mark, info = shown("mark", *files(folder)), shown("info", *files(folder))
    assert mark == {name: info[name] for name in mark}


@pytest.mark.usefixtures("unchanged")
def test_journal_files_from_the_mark_on_are_needed_and_one_is_spare(folder: Path) -> None:
    journals = shown("journal", *files(folder))
    assert [each["use"] for each in journals] == ["needed"] * (len(journals) - 1) + ["spare"]
    first = shown("mark", *files(folder))["journal"]
    assert all(each["journal"] >= first for each in journals)


@pytest.mark.usefixtures("unchanged")
def test_entry_logs_are_listed_with_their_sizes(folder: Path) -> None:
    logs, info = shown("entrylog", *files(folder)), shown("info", *files(folder))
    assert len(logs) == info["entry_logs"]
    assert sum(each["bytes"] for each in logs) == info["entry_log_bytes"]
    assert all(Path(each["path"]).stat().st_size == each["bytes"] for each in logs)


@pytest.mark.usefixtures("unchanged")
def test_ledgers_are_listed_with_their_entries_and_states(folder: Path) -> None:
    ledgers = shown("ledgers", *files(folder))
    assert [each["ledger_id"] for each in ledgers] == [1, 2, 3]
    assert [each["entries"] for each in ledgers] == [30, 30, 0]
    assert [each["is_fenced"] for each in ledgers] == [False, True, True]
    assert [each["is_deleted"] for each in ledgers] == [False, False, True]


@pytest.mark.usefixtures("unchanged")
def test_ledger_list_honors_after_and_limit(folder: Path) -> None:
    ledgers = shown("ledgers", *files(folder))
    assert shown("ledgers", "--after", "1", "--limit", "1", *files(folder)) == ledgers[1:2]


@pytest.mark.usefixtures("unchanged")
def test_ledger_is_shown_with_the_files_that_hold_its_entries(folder: Path) -> None:
    ledger = shown("ledger", "1", *files(folder))
    assert (ledger["first_entry"], ledger["last_entry"], ledger["has_key"]) == (0, 29, True)
    assert sum(place["entries"] for place in ledger["places"]) == 30
    listed = [*shown("entrylog", *files(folder)), *shown("journal", *files(folder))]
    known = {Path(each["path"]).name for each in listed}
    assert {place["file"] for place in ledger["places"]} <= known


@pytest.mark.usefixtures("unchanged")
def test_verify_finds_nothing_in_sound_files(folder: Path) -> None:
    assert shown("verify", *files(folder))["findings"] == []


@pytest.mark.usefixtures("unchanged")
def test_records_and_extents_are_listed(folder: Path) -> None:
    (*_, last) = [
        each
        for each in shown("journal", *files(folder))
        if shown("journal", str(each["journal"]), *files(folder))
    ]
    records = shown("journal", str(last["journal"]), *files(folder))
    sequences = [each["sequence"] for each in records]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
    assert all(each["is_sound"] for each in records)
    assert "control" in [each["kind"] for each in records]

    log = shown("entrylog", *files(folder))[0]
    extents = shown("entrylog", str(log["log"]), *files(folder))
    assert [each["ledger_id"] for each in extents] == [1, 2, 3][: len(extents)]
    in_log = shown("entrylog", str(log["log"]), "--records", *files(folder))
    assert in_log[-1]["kind"] == "end"
    held = sum(last - first + 1 for each in in_log for _, first, last in each["ledgers"] or [])
    assert held >= sum(each["entries"] for each in extents)


@pytest.mark.parametrize(
    ("command", "name"), [("ledgers", "ledger_id"), ("journal", "journal"), ("entrylog", "log")]
)
def test_lists_have_name_and_wide_outputs(folder: Path, command: str, name: str) -> None:
    rows = shown(command, *files(folder))
    names = run(command, "-o", "name", *files(folder)).stdout.splitlines()
    assert names == [str(each[name]) for each in rows]
    wide = run(command, "-o", "wide", *files(folder)).stdout
    assert set(rows[0]) <= set(wide.splitlines()[0].lower().split())


def test_ndjson_output_equals_json_output(folder: Path) -> None:
    for command in (["ledgers"], ["journal"], ["entrylog"], ["ledger", "1"], ["mark"], ["info"]):
        table = run(*command, *files(folder)).stdout
        lines = run(*command, "-o", "ndjson", *files(folder)).stdout.splitlines()
        whole = shown(*command, *files(folder))
        assert [json.loads(line) for line in lines] == (
            whole if isinstance(whole, list) else [whole]
        )
        assert table.strip()
        assert "{" not in table


@pytest.mark.usefixtures("unchanged")
def test_directories_may_come_from_the_environment(folder: Path) -> None:
    environ = {
        "ROLLBOOK_JOURNAL_DIR": f"{folder}/journal",
        "ROLLBOOK_LEDGER_DIR": f"{folder}/a,{folder}/b",
    }
    assert shown("mark", **environ) == shown("mark", *files(folder))


async def test_config_file_locates_the_bookie(folder: Path, http: str, tmp_path: Path) -> None:
    stopped, running, of_java = (tmp_path / name for name in ("a.toml", "b.toml", "bk.conf"))
    dirs = f'journal_dir = "{folder}/journal"\nledger_dirs = ["{folder}/a", "{folder}/b"]\n'
    stopped.write_text(f"[storage]\n{dirs}")
    running.write_text(f'[bookie]\nhttp = "{http}"\n[storage]\n{dirs}')
    of_java.write_text(
        f"journalDirectory={folder}/journal\nledgerDirectories={folder}/a,{folder}/b\n"
        "metadataServiceUri=zk://127.0.0.1:1/ledgers\n"
    )
    mark = await asyncio.to_thread(shown, "mark", *files(folder))
    for config in (stopped, of_java):
        found = await asyncio.to_thread(shown, "mark", "--config", str(config))
        assert found == mark, config
    found = await asyncio.to_thread(shown, "mark", "--config", str(running))
    assert found["active_journal"] == 3
    assert await asyncio.to_thread(shown, "verify", ROLLBOOK_CONFIG=str(running))
    missing = await asyncio.to_thread(run, "mark", "--config", f"{tmp_path}/none.toml")
    assert isinstance(missing.exception, errors.BadConfig)


def test_unknown_ids_and_wrong_directories_are_errors(folder: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[str], type[errors.RollbookError], str]] = [
        (["ledger", "9"], errors.NoSuchLedger, "ledgers"),
        (["journal", "99"], errors.Missing, "journal"),
        (["entrylog", "99"], errors.Missing, "entrylog"),
        (["entrylog", "99", "--records"], errors.Missing, "entrylog"),
    ]
    for command, kind, lists in cases:
        error = run(*command, *files(folder)).exception
        assert isinstance(error, kind), command
        assert error.next_step.startswith(f"rollbook bookie {lists} --"), command
        listed = run(*shlex.split(error.next_step)[2:])  # The suggested command works.
        assert listed.exception is None, command
        assert listed.stdout, command
    nowhere = files(tmp_path / "nowhere")
    swapped = ["--journal-dir", f"{folder}/a", "--ledger-dir", f"{folder}/journal"]
    for places in (nowhere, swapped, files(folder)[:2], files(folder)[2:]):
        for name in ("info", "journal", "verify"):
            assert isinstance(run(name, *places).exception, errors.BadConfig), (name, places)


def test_running_bookie_can_be_inspected_but_not_verified(folder: Path) -> None:
    async def story() -> None:
        disk = SystemDisk()
        storage = await Storage.open(disk, config_of(folder), SystemClock(), random.Random(1))
        storage.start()
        try:
            for name in ("info", "ledgers", "journal", "entrylog", "mark"):
                assert (await asyncio.to_thread(run, name, *files(folder))).exception is None
            refused = await asyncio.to_thread(run, "verify", *files(folder))
            assert isinstance(refused.exception, errors.DirectoryInUse)
        finally:
            await storage.close()
            disk.close()

    asyncio.run(story())
    assert shown("verify", *files(folder))["findings"] == []


# --- Damage -----------------------------------------------------------------------------------


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x55]))


@pytest.mark.parametrize("seed", range(12))
def test_verify_finds_a_damaged_byte_in_an_entry_log(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    logs = [Path(each["path"]) for each in shown("entrylog", *files(folder))]
    path = chance.choice(logs)
    record = chance.choice(shown("entrylog", str(int(path.stem)), "--records", *files(folder)))
    size = path.stat().st_size
    position = [
        record["position"] + chance.randrange(44),  # In the record's head.
        record["position"] + 44 + chance.randrange(max(1, record["body_bytes"])),  # In its body.
        size - 1 - chance.randrange(400),  # In the footer's tables.
    ][seed % 3]
    damage(path, position)
    found = run("verify", "-o", "json", *files(folder))
    assert isinstance(found.exception, errors.DataLost)
    findings = json.loads(found.stdout)["findings"]
    assert str(path) in {each["file"] for each in findings}


def test_verify_reports_journal_damage_with_its_ledgers(folder: Path) -> None:
    for each in reversed(shown("journal", *files(folder))):
        records = shown("journal", str(each["journal"]), *files(folder))
        if any(record["kind"] == "frames" for record in records):
            break
    record = next(record for record in records if record["kind"] == "frames")
    damage(Path(each["path"]), record["position"] + 100)
    found = run("verify", "-o", "json", *files(folder))
    assert isinstance(found.exception, errors.DataLost)
    (finding,) = json.loads(found.stdout)["findings"]
    assert finding["position"] == record["position"]
    assert finding["ledgers"] == sorted({ledger for ledger, _, _ in record["ledgers"]})
    again = shown("journal", str(each["journal"]), *files(folder))
    assert [each["is_sound"] for each in again].count(False) == 1


def findings_in(folder: Path) -> list[dict[str, Any]]:
    found = run("verify", "-o", "json", *files(folder))
    assert isinstance(found.exception, errors.DataLost)
    told: list[dict[str, Any]] = json.loads(found.stdout)["findings"]
    return told


def test_verify_reports_damage_to_one_of_two_copies(folder: Path) -> None:
    """No data is lost yet, but damage to the other copy would lose some."""
    log = Path(shown("entrylog", *files(folder))[0]["path"])
    damage(log, 600)  # In the second copy of the header.
    (catalog,) = (folder / "a").glob("catalog-*.a")
    damage(catalog, 1_100)  # In the first record of one copy.
    told = {each["file"]: each for each in findings_in(folder)}
    assert set(told) == {str(log), str(catalog)}
    assert all(each["ledgers"] == [] for each in told.values())
    assert "header" in told[str(log)]["what"]
    assert "catalog" in told[str(catalog)]["what"]


@pytest.mark.parametrize("command", ["info", "ledgers", "mark", "verify", "entrylog"])
def test_store_with_both_catalog_copies_damaged_is_data_loss(folder: Path, command: str) -> None:
    for path in [*(folder / "a").glob("catalog-*"), *(folder / "b").glob("catalog-*")]:
        path.write_bytes(bytes(path.stat().st_size))
    refused = run(command, *files(folder)).exception
    assert isinstance(refused, errors.DataLost)
    assert "both of its copies are damaged" in str(refused)


def test_verify_reports_index_with_wrong_positions(folder: Path) -> None:
    """The checksums of the index are valid."""
    log = shown("entrylog", *files(folder))[0]
    contents = Path(log["path"]).read_bytes()
    header = unpack_file_header(contents)
    assert header
    trailer = unpack_trailer(contents[-TRAILER_BYTES:], header.file_id, len(contents))
    tables_at = len(contents) - TRAILER_BYTES - trailer.table_bytes
    tables = unpack_tables(contents[tables_at:-TRAILER_BYTES], header.file_id, tables_at, trailer)
    builder, footer = FooterBuilder(header.file_id, trailer.footer_at), list[bytes]()
    for ledger_id in tables.ledger_ids:
        (row,) = tables.pages_of(ledger_id)
        columns = unpack_page(contents[row.position : row.position + row.size], row)
        if ledger_id == 2:  # Reverse the positions of its entries.
            columns = columns._replace(positions=columns.positions[::-1])
        footer += builder.add_ledger(ledger_id, columns, NO_ENTRY, sum(columns.lengths))
    footer.append(builder.finish(tables.records))
    Path(log["path"]).write_bytes(contents[: trailer.footer_at] + b"".join(footer))
    told = findings_in(folder)
    assert told
    assert {each["file"] for each in told} == {log["path"]}
    assert {tuple(each["ledgers"]) for each in told} == {(2,)}
    assert all("the index says" in each["what"] for each in told)


class _NoCheckpoints(Storage):
    async def checkpoint(self) -> bool:
        return False


async def _make_backlog(folder: Path) -> None:
    """Fill several journal files without any checkpoint."""
    disk, chance = SystemDisk(), random.Random(3)
    await Storage.make(disk, config_of(folder), chance)
    storage = await _NoCheckpoints.open(disk, config_of(folder), SystemClock(), chance)
    storage.start()
    for entry_id in range(30):
        await add(storage, (1, entry_id), payload=bytes(4_000))
    assert storage._journal._spare
    await storage._journal._spare  # A slow disk may not have made the next file yet.
    await storage.close()
    disk.close()


def test_torn_tail_is_damage_unless_in_the_last_journal_file(tmp_path: Path) -> None:
    """An earlier file's tail was durable before the next file got a record."""
    asyncio.run(_make_backlog(tmp_path))
    journals = shown("journal", *files(tmp_path))
    assert [each["use"] for each in journals] == ["needed"] * (len(journals) - 1) + ["spare"]
    assert shown("verify", *files(tmp_path))["entries"] == 30
    for each, is_told in ((journals[-2], False), (journals[0], True)):
        end = shown("journal", str(each["journal"]), *files(tmp_path))[-1]
        with Path(each["path"]).open("r+b") as file:
            file.seek(end["position"])
            file.write(bytes(512))
        found = run("verify", "-o", "json", *files(tmp_path))
        told = json.loads(found.stdout)["findings"]
        assert (each["path"] in {finding["file"] for finding in told}) == is_told, told


def test_verify_reports_missing_and_truncated_files(folder: Path) -> None:
    log, other = [Path(each["path"]) for each in shown("entrylog", *files(folder))][:2]
    log.unlink()
    with other.open("r+b") as file:
        file.truncate(other.stat().st_size // 2)
    journal = Path(shown("journal", *files(folder))[0]["path"])
    journal.unlink()
    found = run("verify", "-o", "json", *files(folder))
    told = {each["file"]: each for each in json.loads(found.stdout)["findings"]}
    assert {str(log), str(other), str(journal)} <= set(told)
    assert told[str(log)]["what"] == "it is missing"
    assert told[str(log)]["ledgers"]
    assert shown("journal", *files(folder))[0]["use"] == "missing"


# --- A running bookie -------------------------------------------------------------------------


@pytest.fixture
async def admin() -> FakeAdmin:
    found = FakeAdmin()
    found.may_finish.set()
    return found


@pytest.fixture
async def http(admin: FakeAdmin) -> AsyncIterator[str]:
    server = await AdminServer.start(admin, HttpConfig(Address("127.0.0.1", 0)))
    yield str(server.address)
    await server.close()


async def ask(http: str, *arguments: str) -> Any:
    return await asyncio.to_thread(shown, *arguments, "--http", http)


async def failure(http: str, *arguments: str) -> BaseException | None:
    return (await asyncio.to_thread(run, *arguments, "--http", http)).exception


async def test_running_bookie_answers_inspection_over_http(http: str) -> None:
    assert (await ask(http, "info"))["bookie_id"] == "bk-1"
    assert [each["ledger_id"] for each in await ask(http, "ledgers")] == [7, 8, 9]
    assert [each["ledger_id"] for each in await ask(http, "ledgers", "--limit", "2")] == [7, 8]
    assert (await ask(f"http://{http}", "ledger", "7"))["places"][0]["file"] == "1.log"
    assert (await ask(http, "mark"))["journal"] == 2
    error = await failure(http, "ledger", "8")
    assert isinstance(error, errors.NoSuchLedger)
    assert error.next_step == f"rollbook bookie ledgers --http {http}"


async def test_gc_is_run_by_a_running_bookie(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "gc"))["result"] == {"ledgers": 3}
    assert (await ask(http, "gc", "--force"))["state"] == "done"
    assert admin.done == ["gc", "gc --force"]


async def test_gc_status_runs_nothing(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "gc", "--status"))["is_in_force_gc"] is False
    assert admin.done == []


async def test_ledger_is_verified_by_a_running_bookie(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "ledger", "7", "--verify"))["damaged"] == []
    assert admin.done == ["verify"]


async def test_verify_of_unknown_ledger_suggests_listing_ledgers(http: str) -> None:
    error = await failure(http, "ledger", "8", "--verify")
    assert isinstance(error, errors.NoSuchLedger)
    assert error.next_step == f"rollbook bookie ledgers --http {http}"


async def test_each_compaction_collects_garbage_first(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "compact", "--major"))["state"] == "done"
    assert (await ask(http, "compact", "--minor"))["kind"] == "minor-compaction"
    assert admin.done == ["gc", "major", "gc", "minor"]


async def test_compaction_is_suspended_and_resumed(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "compact", "--suspend"))["isMajorGcSuspended"] is True
    assert (await ask(http, "compact", "--status"))["isMinorGcSuspended"] is True
    assert (await ask(http, "compact", "--resume"))["isMajorGcSuspended"] is False
    assert admin.done == []


async def test_compact_without_a_kind_is_refused(admin: FakeAdmin, http: str) -> None:
    assert isinstance(await failure(http, "compact"), click.UsageError)
    assert admin.done == []


async def test_scrub_is_run_by_a_running_bookie(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "scrub"))["result"] == {"bytes": 100}
    assert (await ask(http, "scrub", "--status")) == {"runs": 2, "is_suspended": False}
    assert admin.done == ["scrub"]


async def test_scrub_is_suspended_and_resumed(admin: FakeAdmin, http: str) -> None:
    assert (await ask(http, "scrub", "--suspend"))["is_suspended"] is True
    assert (await ask(http, "scrub", "--resume"))["is_suspended"] is False
    assert admin.done == []


async def test_bookie_is_made_read_only_and_writable_again(http: str) -> None:
    assert (await ask(http, "readonly", "on")) == {"readOnly": True}
    assert (await ask(http, "readonly")) == {"readOnly": True}
    assert (await ask(http, "readonly", "off")) == {"readOnly": False}


async def test_verify_of_damaged_ledger_ends_with_an_error(admin: FakeAdmin, http: str) -> None:
    admin.is_damaged = True
    found = await asyncio.to_thread(run, "ledger", "7", "--verify", "-o", "json", "--http", http)
    assert json.loads(found.stdout)["damaged"] == [[3, 4]]
    assert isinstance(found.exception, errors.DataLost)


async def test_scrub_with_no_wait_returns_at_once(admin: FakeAdmin, http: str) -> None:
    admin.may_finish.clear()
    started = await ask(http, "scrub", "--no-wait")
    assert (started["state"], started["result"]) == ("running", None)


async def test_error_of_the_bookie_is_the_error_of_the_command(admin: FakeAdmin, http: str) -> None:
    admin.raises = errors.MetadataUnavailable("no answer", next_step="Wait.")
    error = await failure(http, "gc")
    assert isinstance(error, errors.MetadataUnavailable)
    assert (error.message, error.next_step) == ("no answer", "Wait.")
    admin.is_read_only = admin.disk_is_full = True
    assert isinstance(await failure(http, "readonly", "off"), errors.BookieReadOnly)


async def test_token_file_authenticates_and_is_not_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    server = await AdminServer.start(
        FakeAdmin(), HttpConfig(Address("127.0.0.1", 0), token_file=str(path))
    )
    try:
        http = str(server.address)
        assert (await ask(http, "readonly", "--token-file", str(path))) == {"readOnly": False}
        refused = await failure(http, "readonly")
        assert isinstance(refused, errors.Unauthorized)
        wrong = tmp_path / "wrong"
        wrong.write_text(f"{TOKEN}x")
        refused = await failure(http, "readonly", "--token-file", str(wrong))
        assert isinstance(refused, errors.Unauthorized)
        assert TOKEN not in str(refused)
        missing = await failure(http, "readonly", "--token-file", f"{path}x")
        assert isinstance(missing, errors.BadConfig)
    finally:
        await server.close()


async def test_admin_server_with_mtls_needs_a_trusted_certificate(tmp_path: Path) -> None:
    """A bookie's --tls-authorities also apply to its admin pages."""
    authority = Authority.make(tmp_path)
    own, mine = authority.issue("bookie", "IP:127.0.0.1"), authority.issue("me", "IP:127.0.0.1")
    tls = TlsFiles(own.certificate, own.key, authority.certificate)
    server = await AdminServer.start(FakeAdmin(), HttpConfig(Address("127.0.0.1", 0), tls=tls))
    try:
        words = ("--http", f"https://{server.address}", "--ca-file", authority.certificate)
        certificate = ("--tls-certificate", mine.certificate, "--tls-key", mine.key)
        found = await asyncio.to_thread(run, "readonly", "-o", "json", *words, *certificate)
        assert json.loads(found.stdout) == {"readOnly": False}
        refused = (await asyncio.to_thread(run, "readonly", *words)).exception
        assert isinstance(refused, errors.ConnectionLost)
        assert "--tls-certificate" in refused.next_step
        (tmp_path / "others").mkdir()
        other = Authority.make(tmp_path / "others").issue("other", "IP:127.0.0.1")
        shown = ("--tls-certificate", other.certificate, "--tls-key", other.key)
        not_believed = (await asyncio.to_thread(run, "readonly", *words, *shown)).exception
        assert isinstance(not_believed, errors.ConnectionLost)
        assert f"signed {other.certificate}" in not_believed.next_step
        alone = (await asyncio.to_thread(run, "readonly", *words, "--tls-key", mine.key)).exception
        assert isinstance(alone, errors.BadConfig)
        assert "--tls-certificate" in alone.next_step
        nothing = ("--tls-certificate", str(tmp_path / "none"))
        unread = (await asyncio.to_thread(run, "readonly", *words, *nothing)).exception
        assert isinstance(unread, errors.BadConfig)
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", errors.ConnectionLost),
        (b"SSH-2.0-OpenSSH\r\n", errors.ConnectionLost),
        (b"HTTP/1.1 500 Oops\r\n\r\nno JSON", errors.RollbookError),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", errors.RollbookError),
        (
            b"HTTP/1.1 503 No\r\ncontent-type: application/problem+json\r\n\r\n[]",
            errors.RollbookError,
        ),
    ],
)
async def test_invalid_http_responses_are_errors(
    answer: bytes, error: type[errors.RollbookError]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    assert isinstance(await failure(f"{host}:{port}", "mark"), error)
    server.close()
    await server.wait_closed()
    gone = await failure(f"{host}:{port}", "mark")
    assert isinstance(gone, errors.BookieUnreachable)
    assert "--http" in gone.next_step
    for nonsense in ("ftp://x", "http://", "x:y"):
        assert isinstance(await failure(nonsense, "mark"), errors.BadConfig)


# --- As a process -----------------------------------------------------------------------------


async def test_exit_codes_follow_from_the_error(folder: Path, http: str) -> None:
    logs = await asyncio.to_thread(shown, "entrylog", *files(folder))
    log = Path(logs[0]["path"])
    cases = [
        (["ledger", "9", *files(folder)], 3, "[LEDGER_NOT_FOUND]"),
        (["ledger", "8", "--http", http], 3, "[LEDGER_NOT_FOUND]"),
        (["mark", "--http", "127.0.0.1:1"], 5, "[BOOKIE_UNREACHABLE]"),
        (["compact"], 2, "--major"),
        (["verify", *files(folder)], 0, ""),
    ]
    for arguments, expected, complaint in cases:
        code, _, complaints = await run_process(*arguments)
        assert (code, complaint in complaints) == (expected, True), (arguments, complaints)
    damage(log, 5_000)
    code, output, complaints = await run_process("verify", *files(folder))
    assert (code, "[DATA_LOST]" in complaints, str(log) in output) == (7, True, True)


def test_group_overview_matches_the_help_of_commands() -> None:
    assert isinstance(group, LazyGroup)
    files = ("init", "doctor", "rejoin", "write-off", "format")
    lifecycle = ("drain", "undrain", "mark-drained", "safe-to-remove", "remove")
    assert {*LOOKING, *TELLING, *files, *lifecycle} == set(group.places)
    context = click.Context(group)
    for name, place in group.places.items():
        command = group.get_command(context, name)
        assert command
        assert command.name == name
        assert command.help
        said = " ".join(command.help.partition("\n\n")[0].split())
        assert said.startswith(place.help.rstrip(".")), name


def test_commands_do_not_import_unneeded_modules() -> None:
    """Unneeded imports would slow down the start of each command."""
    code = (
        "import sys, json; sys.argv = ['rollbook', 'bookie', *sys.argv[1:]]\n"
        "from rollbook.api.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    heavy = {"kazoo", "fastapi", "pydantic", "uvicorn", "prometheus_client", "sqlite3"}
    cases = [
        (["info", "--help"], {*heavy, "asyncio", "structlog", "http.client", "google_crc32c"}),
        (["mark", "--http", "127.0.0.1:1"], {*heavy, "asyncio", "structlog", "google_crc32c"}),
        (["mark", "--journal-dir", "/x", "--ledger-dir", "/y"], heavy),
    ]
    for arguments, unwanted in cases:
        found = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, check=True
        )
        loaded = set(json.loads(found.stderr.splitlines()[-1]))
        assert not loaded & unwanted, arguments


def test_every_command_has_three_examples() -> None:
    for name in (*LOOKING, *TELLING):
        text = run(name, "--help").stdout
        lines = text.partition("Examples:")[2].strip().splitlines()
        assert len(lines) == 3, name
        assert all(line.strip().startswith(f"rollbook bookie {name}") for line in lines), name


@pytest.mark.parametrize("url", ["http://[bad", "ftp://127.0.0.1", "127.0.0.1:port", "http://"])
def test_invalid_http_address_is_refused(url: str) -> None:
    assert isinstance(run("info", "--http", url).exception, errors.BadConfig)

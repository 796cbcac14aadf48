"""`rollbook bookie info|ledgers|ledger|journal|entrylog|mark|verify` inspect a bookie;
`gc|compact|scrub|readonly` send requests to a running one.

Requests to a running bookie use HTTP (`--http`). The files of a stopped bookie are read directly (`--journal-dir`,
`--ledger-dir`), and never changed. Files can also be read while the bookie runs; the output then shows their state at
one moment. Only `verify` needs a stopped bookie, because files that appear or disappear during the check would
look like damage.
"""

import os
import random
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.output import (
    examples,
    list_output_option,
    output_option,
    show_facts,
    show_rows,
    tell_rows,
)
from rollbook.proto.errors import BadConfig, DataLost, Missing, NoSuchLedger

if TYPE_CHECKING:  # Imported when a command needs them, to keep `--help` quick.
    from rollbook.api.cli.bookie_admin_client import AdminClient
    from rollbook.bookie.inspection import StoreFiles

T = TypeVar("T")

_HTTP: Final = "http://127.0.0.1:8001"
_PAGE: Final = 500
_POLL_S: Final = 0.2
_API: Final = "/api/v1/bookie"
_LEDGER_COLUMNS: Final = (
    "ledger_id",
    "entries",
    "first_entry",
    "last_entry",
    "entry_bytes",
    "last_add_confirmed",
    "is_fenced",
    "is_deleted",
    "is_doubtful",
)


@dataclass(frozen=True, slots=True)
class Where:
    """The bookie that a command inspects: a running bookie, or a bookie's files."""

    http: str | None
    token_file: str | None
    ca_file: str | None
    tls_certificate: str | None
    tls_key: str | None
    insecure: bool
    journal_dir: str | None
    ledger_dirs: tuple[str, ...]

    @property
    def is_files(self) -> bool:
        return self.http is None and bool(self.journal_dir or self.ledger_dirs)

    def client(self) -> "AdminClient":
        from rollbook.api.cli.bookie_admin_client import AdminClient

        return AdminClient(
            self.http or _HTTP,
            self.token_file,
            self.ca_file,
            self.tls_certificate,
            self.tls_key,
            self.insecure,
        )

    @property
    def flags(self) -> str:
        """Returns the flags as the user would type them again."""
        typed: tuple[tuple[str, str | None], ...] = (
            ("http", self.http),
            ("token-file", self.token_file),
            ("ca-file", self.ca_file),
            ("tls-certificate", self.tls_certificate),
            ("tls-key", self.tls_key),
        )
        if self.is_files:
            typed = (
                ("journal-dir", self.journal_dir),
                *(("ledger-dir", each) for each in self.ledger_dirs),
            )
        flags = "".join(f" --{name} {shlex.quote(value)}" for name, value in typed if value)
        return f"{flags} --insecure" if self.insecure else flags

    @contextmanager
    def advising(self, lists: str) -> Iterator[None]:
        """Adds a next step to `Missing`: the command that lists what exists."""
        try:
            yield
        except Missing as error:
            error.next_step = error.next_step or f"rollbook bookie {lists}{self.flags}"
            raise

    def read(self, use: Callable[["StoreFiles"], Awaitable[T]]) -> T:
        """Opens the bookie's files and passes them to `use`."""
        import asyncio

        from rollbook.bookie.config import StorageConfig
        from rollbook.bookie.inspection import StoreFiles
        from rollbook.proto.runtime.disk import SystemDisk
        from rollbook.proto.runtime.logging_setup import configure_logs

        configure_logs(level="error", as_json=False)
        if not self.journal_dir or not self.ledger_dirs:
            raise BadConfig(
                "a bookie's files are in a journal directory and in ledger directories, and both are needed",
                next_step="use --journal-dir and a --ledger-dir for each ledger directory, or --config",
            )
        journal_dir = os.path.abspath(self.journal_dir)
        ledger_dirs = tuple(map(os.path.abspath, self.ledger_dirs))

        async def look() -> T:
            disk = SystemDisk()
            try:
                config = StorageConfig(journal_dir, ledger_dirs)
                return await use(await StoreFiles.open(disk, config, random.SystemRandom()))
            finally:
                disk.close()

        return asyncio.run(look())


_http_options: Final = (
    click.option(
        "--http",
        metavar="URL",
        envvar="ROLLBOOK_HTTP",
        show_envvar=True,
        help=f"The address of the bookie's admin pages.  [default: {_HTTP}]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        envvar="ROLLBOOK_HTTP_TOKEN_FILE",
        show_envvar=True,
        help="The first line of this file is the token for the bookie.",
    ),
    click.option("--ca-file", metavar="FILE", help="The CA certificates to trust, for https."),
    click.option(
        "--tls-certificate",
        metavar="FILE",
        help="The client certificate, if the bookie requests one over https.",
    ),
    click.option(
        "--tls-key",
        metavar="FILE",
        help="The key of --tls-certificate.  [default: in the certificate's file]",
    ),
    click.option(
        "--insecure", is_flag=True, help="Send the token unencrypted, even to other machines."
    ),
)
_config_option: Final = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="ROLLBOOK_CONFIG",
    show_envvar=True,
    help="The bookie's configuration file, instead of the options above.",
)
_file_options: Final = (
    click.option(
        "--journal-dir",
        metavar="DIR",
        envvar="ROLLBOOK_JOURNAL_DIR",
        show_envvar=True,
        help="The bookie's journal directory, to read its files directly.",
    ),
    click.option(
        "--ledger-dir",
        "ledger_dirs",
        metavar="DIR",
        multiple=True,
        help="A ledger directory of the bookie. Repeat the option for each, in the bookie's order.  "
        "[env var: ROLLBOOK_LEDGER_DIR, separated by commas]",
    ),
)

Command = Callable[..., None]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _where_in(config_file: str, where: Where) -> Where:
    """Returns `where` with the admin pages and the directories from the configuration file."""
    from rollbook.api.cli.server.bookie_settings import read_bookie_config

    tables = read_bookie_config(config_file).tables
    bookie, storage = tables.get("bookie", {}), tables.get("storage", {})
    http = bookie.get("http") or None
    if http and bookie.get("http_tls"):
        http = f"https://{http}"
    return replace(
        where,
        http=http,
        token_file=where.token_file or bookie.get("http_token_file") or None,
        journal_dir=storage.get("journal_dir"),
        ledger_dirs=tuple(storage.get("ledger_dirs", ())),
    )


def _takes(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Adds the options, and passes their values to the command as one `Where`."""

    def decorate(command: Command) -> Command:
        def run(
            http: str | None = None,
            token_file: str | None = None,
            ca_file: str | None = None,
            tls_certificate: str | None = None,
            tls_key: str | None = None,
            insecure: bool = False,
            journal_dir: str | None = None,
            ledger_dirs: tuple[str, ...] = (),
            config_file: str | None = None,
            **rest: Any,
        ) -> None:
            listed = ledger_dirs or _listed(os.environ.get("ROLLBOOK_LEDGER_DIR", ""))
            where = Where(
                http,
                token_file,
                ca_file,
                tls_certificate,
                tls_key,
                insecure,
                journal_dir,
                listed,
            )
            if config_file and not (http or journal_dir or listed):
                where = _where_in(config_file, where)
            command(where, **rest)

        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__dict__.update(command.__dict__)  # Keeps the options that click has collected so far.
        found: Command = run
        for option in reversed(options):
            found = option(found)
        return found

    return decorate


_live: Final = _takes(*_http_options, _config_option)
_files: Final = _takes(*_file_options, _config_option)
_either: Final = _takes(*_http_options, *_file_options, _config_option)

commands: Final[dict[str, click.Command]] = {}


def _command(*lines: str) -> Callable[[Command], click.Command]:
    """Makes a command with its three examples."""

    def decorate(function: Command) -> click.Command:
        name = function.__name__
        command = click.command(
            name, epilog=examples(*(f"rollbook bookie {line}" for line in lines))
        )(function)
        commands[name] = command
        return command

    return decorate


# --- Commands that inspect --------------------------------------------------------------------


@_command(
    "info",
    "info --http http://10.0.0.7:8001 --token-file token -o json",
    "info --config /etc/bookkeeper/bk_server.conf",
)
@output_option
@_either
def info(where: Where, output: str) -> None:
    """Show a summary of one bookie."""
    if not where.is_files:
        facts = where.client().get(f"{_API}/status")
        if output != "table":
            show_facts(facts, output)
            return
        directories, latencies = facts.pop("directories"), facts.pop("latencies_ms")
        show_facts(facts, output)
        click.echo("")
        show_rows(("path", "kind", "free_bytes", "total_bytes"), directories, output)
        if latencies:
            click.echo("")
            rows = [{"latency_ms": name, **of} for name, of in latencies.items()]
            show_rows(("latency_ms", "p50", "p99", "p999"), rows, output)
        return

    async def look(store: "StoreFiles") -> dict[str, Any]:
        journals, logs = await store.journal_files(), store.logs()
        doubts = store.catalog.doubts
        return {
            **store.mark(),
            "journal_files": len(journals),
            "journal_bytes": sum(each["bytes"] or 0 for each in journals),
            "entry_logs": len(logs),
            "entry_log_bytes": sum(each["bytes"] for each in logs),
            "ledgers_in_logs": len(store.catalog.facts),
            "doubtful_ledgers": doubts.ledgers,
            "doubts_everything": doubts.everything,
        }

    show_facts(where.read(look), output)


@_command(
    "ledgers",
    "ledgers --after 1000 --limit 50",
    "ledgers --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson | jq .ledger_id",
)
@click.option(
    "--after", type=WholeNumber(-1), default=-1, help="Only ledgers with ids above this one."
)
@click.option("--limit", type=WholeNumber(1), help="At most this many ledgers.")
@list_output_option
@_either
def ledgers(where: Where, after: int, limit: int | None, output: str) -> None:
    """List the ledgers with data on this bookie."""
    if where.is_files:
        rows = iter(where.read(lambda store: _ledgers_in(store, after, limit)))
    else:
        rows = _ledgers_of(where.client(), after, limit)
    tell_rows(_LEDGER_COLUMNS, rows, output, "ledger_id")


def _ledgers_of(client: "AdminClient", after: int, limit: int | None) -> Iterator[dict[str, Any]]:
    next_after: int | None = after
    left = limit if limit is not None else sys.maxsize
    while next_after is not None and left > 0:
        page = client.get(f"{_API}/ledgers", after=next_after, limit=min(_PAGE, left))
        yield from page["ledgers"]
        left -= len(page["ledgers"])
        next_after = page["next_after"]


async def _ledgers_in(store: "StoreFiles", after: int, limit: int | None) -> list[dict[str, Any]]:
    views = await store.ledgers()
    ids = sorted({each for each in views.known_ids() if each > after})
    return [views.summary(each) for each in ids[:limit]]


@_command(
    "ledger 7",
    "ledger 7 --verify -o json",
    "ledger 7 --journal-dir /data/journal --ledger-dir /data/ledgers",
)
@click.argument("ledger_id", type=WholeNumber(0))
@click.option(
    "--verify",
    is_flag=True,
    help="Read all entries of the ledger from a running bookie's disk, and check them.",
)
@output_option
@_either
def ledger(where: Where, ledger_id: int, verify: bool, output: str) -> None:
    """Show what this bookie stores of one ledger, and in which files."""
    if verify:
        if where.is_files:
            raise click.UsageError(
                "--verify needs a running bookie; to check files, use rollbook bookie verify"
            )
        client = where.client()
        with where.advising("ledgers"):
            started = client.put(f"{_API}/ledgers/{ledger_id}/verify")
            found = _wait_for(client, started)["result"]
        show_facts(found, output)
        if found["damaged"]:
            raise DataLost("entries of this ledger are damaged on this bookie", ledger_id=ledger_id)
        return
    with where.advising("ledgers"):
        if where.is_files:
            facts = where.read(lambda store: _ledger_in(store, ledger_id))
        else:
            facts = where.client().get(f"{_API}/ledgers/{ledger_id}")
    if output != "table":
        show_facts(facts, output)
        return
    places = facts.pop("places")
    facts["doubts"] = [f"{each['first_entry']}-{each['last_entry']}" for each in facts["doubts"]]
    show_facts(facts, output)
    click.echo("")
    show_rows(("file", "first_entry", "last_entry", "entries", "entry_bytes"), places, output)


async def _ledger_in(store: "StoreFiles", ledger_id: int) -> dict[str, Any]:
    views = await store.ledgers()
    if ledger_id not in views:
        raise NoSuchLedger(ledger_id=ledger_id)
    return views.details(ledger_id)


@_command(
    "journal --journal-dir /data/journal --ledger-dir /data/ledgers",
    "journal 12 --journal-dir /data/journal --ledger-dir /data/ledgers",
    "journal 12 --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson | tail -1",
)
@click.argument("number", type=WholeNumber(1), required=False)
@list_output_option
@_files
def journal(where: Where, number: int | None, output: str) -> None:
    """List the journal's files, or the records of one of them."""
    if number is None:
        files = where.read(lambda store: store.journal_files())
        tell_rows(("journal", "bytes", "use"), files, output, "journal", ("path",))
        return
    with where.advising("journal"):
        found = where.read(lambda store: _all(store.journal_records(number)))
    _show_records(found, output)


@_command(
    "entrylog --journal-dir /data/journal --ledger-dir /data/ledgers",
    "entrylog 5 --journal-dir /data/journal --ledger-dir /data/ledgers",
    "entrylog 5 --records --journal-dir /data/journal --ledger-dir /data/ledgers -o ndjson",
)
@click.argument("number", type=WholeNumber(1), required=False)
@click.option(
    "--records", is_flag=True, help="List the records of the entry log instead of its ledgers."
)
@list_output_option
@_files
def entrylog(where: Where, number: int | None, records: bool, output: str) -> None:
    """List the entry logs, or the ledgers in one of them; `live` is the share of live entries."""
    if number is None:

        async def logs(store: "StoreFiles") -> list[dict[str, Any]]:
            return store.logs()

        columns = ("log", "bytes", "ledgers", "entries", "entry_bytes", "live")
        tell_rows(columns, where.read(logs), output, "log", ("path",))
        return
    if records:
        with where.advising("entrylog"):
            found = where.read(lambda store: _all(store.log_records(number)))
        _show_records(found, output)
        return

    async def extents(store: "StoreFiles") -> list[dict[str, Any]]:
        return store.extents(number)

    with where.advising("entrylog"):
        held = where.read(extents)
    tell_rows(_LEDGER_COLUMNS[:6], held, output, "ledger_id")


def _show_records(records: list[dict[str, Any]], output: str) -> None:
    if output in ("table", "wide"):
        for each in records:
            ledgers = each["ledgers"] or []
            shown = ledgers if output == "wide" else ledgers[:4]
            each["ledgers"] = [f"{ledger}:{first}-{last}" for ledger, first, last in shown]
            each["ledgers"] += ["…"] * (len(ledgers) > len(shown))
    columns = ("position", "sequence", "kind", "last_synced", "body_bytes", "is_sound", "ledgers")
    tell_rows(columns, records, output, "position")


async def _all(found: AsyncIterator[T]) -> list[T]:
    return [each async for each in found]


@_command(
    "mark",
    "mark -o json",
    "mark --journal-dir /data/journal --ledger-dir /data/ledgers",
)
@output_option
@_either
def mark(where: Where, output: str) -> None:
    """Show where a restart would begin to replay the journal: all earlier entries are in entry logs."""

    async def mark(store: "StoreFiles") -> dict[str, Any]:
        return store.mark()

    facts = where.read(mark) if where.is_files else where.client().get(f"{_API}/last_log_mark")
    show_facts(facts, output)


@_command(
    "verify --journal-dir /data/journal --ledger-dir /data/ledgers",
    "verify --config /etc/rollbook/bookie.toml -o json",
    "verify --journal-dir /data/journal --ledger-dir /data/a --ledger-dir /data/b || echo damaged",
)
@output_option
@_files
def verify(where: Where, output: str) -> None:
    """Read and check every byte of a stopped bookie's files.

    It changes nothing, and exits with 7 if it finds damage. A running bookie answers UNKNOWN for
    damaged entries, and never returns wrong data.
    """

    async def verify(store: "StoreFiles") -> dict[str, Any]:
        locks = await store.lock()
        try:
            with ExitStack() as stack:
                bar = stack.enter_context(_bar("verifying", await store.size()))
                async for state in store.verify():
                    bar.update(state.bytes - bar.pos)
        finally:
            for lock in locks:
                await lock.release()
        return asdict(state)

    found = where.read(verify)
    findings = found["findings"]
    if output == "table":
        found["findings"] = len(findings)
        show_facts(found, output)
        if findings:
            click.echo("")
            show_rows(("file", "position", "what", "ledgers"), findings, output)
    else:
        show_facts(found, output)
    if findings:
        raise DataLost(
            f"{len(findings)} places are damaged",
            next_step="start the bookie: it answers UNKNOWN for damaged entries, and serves all others",
        )


# --- Commands that send requests --------------------------------------------------------------

_no_wait: Final = click.option(
    "--no-wait", is_flag=True, help="Do not wait until the operation has ended."
)
_status: Final = click.option("--status", is_flag=True, help="Only show the current state.")


@_command("gc", "gc --no-wait", "gc --status -o json")
@click.option(
    "--force",
    is_flag=True,
    help="Delete at once, without the wait, all ledgers that two scans have not found, even if the metadata lacks "
    "a large share of all ledgers.",
)
@_no_wait
@_status
@output_option
@_live
def gc(where: Where, force: bool, no_wait: bool, status: bool, output: str) -> None:
    """Find deleted ledgers and surplus copies now, and free their space.

    A ledger is deleted on the bookie after two scans of the metadata, some time apart, have not found it. If the
    metadata lacks a large share of all ledgers, no ledger is deleted: the metadata may be lost, or belong to
    another cluster. Use --force if these ledgers were really deleted.

    Copies are surplus if their ledger is closed and its metadata names other bookies. The first scan
    about a day later (`surplus_interval_s`) drops them. `surplus` counts them, and --status lists the first few ledgers.
    """
    client = where.client()
    if status:
        space = client.get(f"{_API}/space")
        shown = ("surplus", "surplus_bytes", "first_ledgers", "dropped")
        surplus = {name: space["surplus"][name] for name in shown if "surplus" in space}
        show_facts({**client.get(f"{_API}/gc"), **space["garbage"], **surplus}, output)
        return
    _follow(client, client.put(f"{_API}/gc", {"force": force}), no_wait, output)


@_command("compact --minor", "compact --major --no-wait", "compact --suspend")
@click.option(
    "--major",
    "what",
    flag_value="major",
    help="Rewrite entry logs with less than 80 % live data, or less than the configured share.",
)
@click.option(
    "--minor",
    "what",
    flag_value="minor",
    help="Rewrite entry logs with less than 20 % live data, or less than the configured share.",
)
@click.option("--suspend", "what", flag_value="suspend", help="Stop compaction until --resume.")
@click.option("--resume", "what", flag_value="resume", help="Compact as configured again.")
@click.option("--status", "what", flag_value="status", help="Only show the current state.")
@_no_wait
@output_option
@_live
def compact(where: Where, what: str | None, no_wait: bool, output: str) -> None:
    """Rewrite entry logs that contain little live data, or suspend compaction."""
    client = where.client()
    match what:
        case "major":
            answer = client.put(f"{_API}/gc", {"forceMajor": True})
            _follow(client, answer, no_wait, output)
        case "minor":
            answer = client.put(f"{_API}/gc", {"forceMinor": True})
            _follow(client, answer, no_wait, output)
        case "suspend":
            body = {"suspendMajor": True, "suspendMinor": True}
            show_facts(client.put(f"{_API}/gc/suspend_compaction", body), output)
        case "resume":
            body = {"resumeMajor": True, "resumeMinor": True}
            show_facts(client.put(f"{_API}/gc/resume_compaction", body), output)
        case "status":
            facts = client.get(f"{_API}/space")["compaction"]
            show_facts({**facts, **client.get(f"{_API}/gc/suspend_compaction")}, output)
        case _:
            raise click.UsageError("give one of --major, --minor, --suspend, --resume and --status")


@_command("scrub", "scrub --no-wait", "scrub --suspend")
@click.option("--suspend", "what", flag_value="suspend", help="Stop the scrub until --resume.")
@click.option("--resume", "what", flag_value="resume", help="Scrub in rounds again.")
@click.option("--status", "what", flag_value="status", help="Only show the current state.")
@_no_wait
@output_option
@_live
def scrub(where: Where, what: str | None, no_wait: bool, output: str) -> None:
    """Read and verify all entry logs of a running bookie.

    A bookie always scrubs in the background, slowly. This command waits for the end of the current round.
    """
    client, path = where.client(), f"{_API}/scrub"
    if what == "status":
        show_facts(client.get(path), output)
    elif what:
        show_facts(client.put(f"{path}/{what}"), output)
    else:
        _follow(client, client.put(path), no_wait, output)


@_command("readonly", "readonly on", "readonly off --http 127.0.0.1:8002")
@click.argument("wanted", type=click.Choice(["on", "off"]), required=False)
@output_option
@_live
def readonly(where: Where, wanted: str | None, output: str) -> None:
    """Show or change whether the bookie accepts new entries."""
    client, path = where.client(), f"{_API}/state/readonly"
    if wanted is None:
        show_facts(client.get(path), output)
    else:
        show_facts(client.put(path, {"readOnly": wanted == "on"}), output)


def _follow(client: "AdminClient", started: Any, no_wait: bool, output: str) -> None:
    operation = started if no_wait else _wait_for(client, started)
    if output != "table":
        show_facts(operation, output)
        return
    facts = {name: operation[name] for name in ("id", "state", "started_ms", "ended_ms")}
    show_facts({**facts, **(operation["result"] or {})}, output)


def _wait_for(client: "AdminClient", started: Any) -> Any:
    """Waits until the operation ends. Raises the operation's error if it failed."""
    operation, is_shown = started, sys.stderr.isatty()
    while operation["state"] == "running":
        time.sleep(_POLL_S)
        operation = client.get(f"{_API}/operations/{operation['id']}")
        if is_shown:
            passed_s = time.time() - operation["started_ms"] / 1000
            what = f"{operation['id']}: {passed_s:.0f} s"
            if operation["kind"] == "scrub":
                what += f", {client.get(f'{_API}/scrub')['logs_left']} logs left"
            click.echo(f"\r{what}\033[K", nl=False, err=True)
    if is_shown:
        click.echo("", err=True)
    if operation["state"] == "failed":
        from rollbook.api.cli.bookie_admin_client import error_of

        raise error_of(operation["problem"])
    return operation


def _bar(label: str, length: int) -> Any:
    """Shows a progress bar on a terminal; it is never part of the output."""
    return click.progressbar(
        length=max(1, length), label=label, file=sys.stderr, hidden=not sys.stderr.isatty()
    )

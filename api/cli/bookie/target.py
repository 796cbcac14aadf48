"""The bookie that a command uses: a running bookie over HTTP, or the files of a stopped one."""

import os
import random
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rollbook.api.cli.output import examples
from rollbook.proto.errors import BadConfig, Missing

if TYPE_CHECKING:  # Imported when a command needs them, to keep `--help` quick.
    from rollbook.api.cli.bookie_admin_client import AdminClient
    from rollbook.bookie.inspection import StoreFiles

T = TypeVar("T")

_HTTP: Final = "http://127.0.0.1:8001"
_POLL_S: Final = 0.2
API_PATH: Final = "/api/v1/bookie"


@dataclass(frozen=True, slots=True)
class Where:
    """The bookie that a command uses: a running bookie, or a bookie's files."""

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
        from rollbook.proto.runtime.logging_setup import configure_logs
        from rollbook.proto.runtime.system_disk import SystemDisk

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


running_bookie: Final = _takes(*_http_options, _config_option)
stopped_bookie: Final = _takes(*_file_options, _config_option)
any_bookie: Final = _takes(*_http_options, *_file_options, _config_option)


def bookie_command(*lines: str) -> Callable[[Command], click.Command]:
    """Makes a command with its three examples."""

    def decorate(function: Command) -> click.Command:
        epilog = examples(*(f"rollbook bookie {line}" for line in lines))
        return click.command(function.__name__, epilog=epilog)(function)

    return decorate


def wait_for(client: "AdminClient", started: Any) -> Any:
    """Waits until the operation ends. Raises the operation's error if it failed."""
    operation, is_shown = started, sys.stderr.isatty()
    while operation["state"] == "running":
        time.sleep(_POLL_S)
        operation = client.get(f"{API_PATH}/operations/{operation['id']}")
        if is_shown:
            passed_s = time.time() - operation["started_ms"] / 1000
            what = f"{operation['id']}: {passed_s:.0f} s"
            if operation["kind"] == "scrub":
                what += f", {client.get(f'{API_PATH}/scrub')['logs_left']} logs left"
            click.echo(f"\r{what}\033[K", nl=False, err=True)
    if is_shown:
        click.echo("", err=True)
    if operation["state"] == "failed":
        from rollbook.api.cli.bookie_admin_client import error_of

        raise error_of(operation["problem"])
    return operation

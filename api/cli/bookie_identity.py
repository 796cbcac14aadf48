"""`rollbook bookie init|format|rejoin|write-off|doctor` say who a bookie is, and mend that.

They take the flags and the configuration file of `rollbook server bookie`, and want it stopped.
"""

import asyncio
import os
import random
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import click
import structlog

from rollbook.api.cli.output import examples, output_option, show_facts, show_rows
from rollbook.bookie.bookie import Settings, addresses_of
from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.bookie.core.identity import Diagnosis
from rollbook.bookie.core.identity import Standing as Judged
from rollbook.bookie.core.remedies import FORMAT, INIT, REJOIN, WRITE_OFF
from rollbook.bookie.identity import Formatted, Identity
from rollbook.bookie.properties import parse_properties, translate
from rollbook.proto.cluster.cluster import open_cluster
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Clock, Disk, MetadataStore, Randomness, Transport
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.config import (
    PREFIX,
    load_config,
    read_config_file,
    read_config_text,
)
from rollbook.proto.runtime.disk import SystemDisk
from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport, address_of_this_host

logger = structlog.get_logger()

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_SECTIONS: Final = ("bookie", "storage", "server", "space")


# --- Settings ---------------------------------------------------------------------------------

_OPTIONS: Final = (
    click.option("--metadata", metavar="URL", help="zk://host,host/ledgers or sqlite:///path."),
    click.option(
        "--bookie-id", metavar="ID", help="For ever.  [default: the advertised HOST:PORT]"
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        help="Port 0 takes a free one.  [default: 127.0.0.1:3181]",
    ),
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        help="Where clients find it.  [default: --listen]",
    ),
    click.option("--journal-dir", metavar="DIR", multiple=True, help="On a fast disk, if any is."),
    click.option(
        "--ledger-dir", metavar="DIR", multiple=True, help="Several times for several disks."
    ),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        envvar=f"{PREFIX}CONFIG",
        help="TOML, or a bk_server.conf of BookKeeper.",
    ),
)


def bookie_options(command: F) -> F:
    """Which bookie it is, and where its files are: what every command about one needs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def load_settings(config_file: str | None = None, **flags: Any) -> Settings:
    """Defaults < file < environment < flags; a flag FOO-BAR is ROLLBOOK_FOO_BAR in the environment
    and foo_bar under [bookie] in the file. Raises `BadConfig`.
    """
    tables = read_bookie_config(config_file) if config_file else {}
    directories = {
        name: tuple(flags.pop(name, ()) or _listed_in_environ(name))
        for name in ("journal_dir", "ledger_dir")
    }
    if len(directories["journal_dir"]) > 1:
        raise BadConfig("a bookie has one journal directory")
    storage_flags = {
        "journal_dir": next(iter(directories["journal_dir"]), None),
        "ledger_dirs": directories["ledger_dir"] or None,
    }
    storage = _load(StorageConfig, "storage", tables, os.environ, storage_flags)
    return Settings(
        _load(BookieConfig, "bookie", tables, _environ_of_flags(BookieConfig), flags),
        replace(
            storage,
            journal_dir=os.path.abspath(storage.journal_dir),
            ledger_dirs=tuple(map(os.path.abspath, storage.ledger_dirs)),
        ),
        _load(ServerConfig, "server", tables, os.environ, {}),
        _load(SpaceConfig, "space", tables, os.environ, {}),
    )


def read_bookie_config(path: str) -> dict[str, dict[str, Any]]:
    """TOML if its name says so, else Java's properties."""
    if path.endswith(".toml"):
        return read_config_file(path, _SECTIONS)
    translated = translate(parse_properties(read_config_text(path)), address_of_this_host)
    if translated.ignored:
        logger.info("config_keys_ignored", path=path, keys=translated.ignored)
    return translated.tables


def _load(
    shape: type[C],
    section: str,
    tables: Mapping[str, Mapping[str, Any]],
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> C:
    given = {name: value for name, value in flags.items() if value is not False}
    return load_config(
        shape, section=section, file=tables.get(section), environ=environ, flags=given
    )


def _environ_of_flags(shape: type[Any]) -> dict[str, str]:
    """ROLLBOOK_LISTEN, under the name by which a section's loader looks for it, which will do, too."""
    section = f"{PREFIX}BOOKIE_"
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(section) and name != f"{PREFIX}BOOKIE_ID"
    } | {
        f"{section}{name.upper()}": os.environ[variable]
        for name in (each.name for each in fields(shape))
        if (variable := f"{PREFIX}{name.upper()}") in os.environ
    }


def _listed_in_environ(name: str) -> list[str]:
    return [part for part in os.environ.get(f"{PREFIX}{name.upper()}", "").split(",") if part]


# --- What it runs on --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealMachine:
    disk: Disk = field(default_factory=SystemDisk)
    transport: Transport = field(default_factory=SocketTransport)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=random.SystemRandom)


async def open_store(config: BookieConfig, *, serve: bool) -> MetadataStore:
    """`serve`: if the store is embedded, this process may be the one that serves the others."""
    url = MetadataUrl.parse(config.metadata)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "what is in memory is gone when this process ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return await open_metadata_store(
        url, serve=serve, visit=not serve, session_timeout_s=config.session_timeout_s
    )


# --- Identity ---------------------------------------------------------------------------------

_yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask.")
_PATIENCE_S: Final = 15.0  # For the last session of a process that was killed.


@click.command(
    epilog=examples(
        f"{INIT} --config bookie.toml",
        f"{INIT} --metadata zk://zk1/ledgers --journal-dir /ssd/j --ledger-dir /disk1/l",
        f"{INIT} --config /etc/bookkeeper/bk_server.conf",
    )
)
@bookie_options
@output_option
def init(output: str, **flags: Any) -> None:
    """Make a new bookie: its directories, its cookie.

    `rollbook server bookie` does it, too, when there is nothing yet. One that is there already stays
    as it is.
    """

    async def make(identity: Identity) -> dict[str, Any]:
        for lock in await identity.establish():
            await lock.release()
        return {"bookie_id": identity.bookie_id, "incarnation": identity.incarnation}

    show_facts(_run(flags, make), output)


@click.command(
    "format",
    epilog=examples(
        f"{FORMAT} --config bookie.toml",
        f"{FORMAT} --config bookie.toml --yes",
        f"{FORMAT} --metadata zk://zk1/ledgers --journal-dir /ssd/j --ledger-dir /disk1/l",
    ),
)
@bookie_options
@_yes_option
@output_option
def format_bookie(output: str, yes: bool, **flags: Any) -> None:
    """Erase a bookie and begin anew under its id.

    What it may have held in ledgers that are not closed yet is UNKNOWN to it from then on, so that
    nobody takes its silence for a proof. Reads the metadata of all ledgers.
    """
    settings = load_settings(**flags)
    _, _, bookie_id = addresses_of(settings.bookie)
    _confirm(
        yes, f"erase bookie {bookie_id} in {', '.join(_directories(settings))}, with all it holds"
    )

    async def erase(identity: Identity) -> dict[str, Any]:
        return _facts(identity, await identity.format(_PATIENCE_S))

    show_facts(_run(flags, erase), output)


@click.command(
    epilog=examples(
        f"{REJOIN} --config bookie.toml",
        f"{REJOIN} --config bookie.toml --ledger-dir /disk1/l --ledger-dir /disk2/l",
        f"{REJOIN} --config /etc/bookkeeper/bk_server.conf",
    )
)
@bookie_options
@output_option
def rejoin(output: str, **flags: Any) -> None:
    """Write anew what says whose the directories are.

    For a bookie that has all its files, after its cookie was removed from the metadata store, a
    directory moved, another ledger directory was added at the end, or a VERSION file was lost.
    """

    async def mend(identity: Identity) -> dict[str, Any]:
        return {"bookie_id": identity.bookie_id, "incarnation": await identity.rejoin()}

    show_facts(_run(flags, mend), output)


@click.command(
    "write-off",
    epilog=examples(
        f"{WRITE_OFF} --config bookie.toml",
        f"{WRITE_OFF} --config bookie.toml --yes",
        f"{WRITE_OFF} --config /etc/bookkeeper/bk_server.conf",
    ),
)
@bookie_options
@_yes_option
@output_option
def write_off(output: str, yes: bool, **flags: Any) -> None:
    """Go on without files that are gone for good.

    What they held is UNKNOWN from then on, until it is copied back from other bookies. Reads the
    metadata of all ledgers.
    """
    settings = load_settings(**flags)
    _, _, bookie_id = addresses_of(settings.bookie)
    _confirm(yes, f"give up what bookie {bookie_id} has lost")

    async def give_up(identity: Identity) -> dict[str, Any]:
        return _facts(identity, await identity.write_off(SystemClock()))

    show_facts(_run(flags, give_up), output)


@click.command(
    epilog=examples(
        "rollbook bookie doctor --config bookie.toml",
        "rollbook bookie doctor --config /etc/bookkeeper/bk_server.conf",
        "rollbook bookie doctor --config bookie.toml -o json | jq -r '.[].remedy'",
    )
)
@bookie_options
@output_option
@click.pass_context
def doctor(context: click.Context, /, output: str, **flags: Any) -> None:
    """Explain what keeps a bookie from starting, and how to mend it.

    Changes nothing. Ends with 8 if something is wrong.
    """

    async def look(identity: Identity) -> tuple[str, Diagnosis]:
        return identity.bookie_id, await identity.diagnose()

    bookie_id, diagnosis = _run(flags, look)
    problems = [
        {"what": each.what, "path": each.path or None, "remedy": with_flags(each.remedy, flags)}
        for each in diagnosis.problems
    ]
    if output != "table":
        show_rows(["what", "path", "remedy"], problems, output)
    elif not problems:
        running = ", and running" if diagnosis.is_running else ""
        click.echo(f"bookie {bookie_id} is fine: {_JUDGED[diagnosis.standing]}{running}")
    for problem in problems if output == "table" else ():
        where = f" ({problem['path']})" if problem["path"] else ""
        click.echo(f"wrong: {problem['what']}{where}\n  try: {problem['remedy']}")
    if problems:
        context.exit(_DEGRADED)


_DEGRADED: Final = 8
_JUDGED: Final = {
    Judged.NEW: "it is new, and begins when it is started",
    Judged.JOINED: "it has just been made, and can be started",
    Judged.MEMBER: "a member of the cluster, with all its directories",
}


def _run(flags: Mapping[str, Any], use: Callable[[Identity], Awaitable[T]]) -> T:
    configure_logs(level="error", as_json=False)
    with advising(flags):
        return asyncio.run(_with_identity(load_settings(**flags), use))


async def _with_identity(settings: Settings, use: Callable[[Identity], Awaitable[T]]) -> T:
    url = MetadataUrl.parse(settings.bookie.metadata)
    _, _, bookie_id = addresses_of(settings.bookie)
    machine = RealMachine()
    async with await open_store(settings.bookie, serve=False) as store:
        cluster = await open_cluster(store, url.ledgers_root)
        return await use(
            Identity(
                *(machine.disk, settings.storage, machine.randomness, store, cluster, bookie_id)
            )
        )


def _facts(identity: Identity, formatted: Formatted) -> dict[str, Any]:
    return {
        "bookie_id": identity.bookie_id,
        "incarnation": formatted.incarnation,
        "ledgers": formatted.ledgers,
        "ledgers_unknown": formatted.doubted,
    }


def _directories(settings: Settings) -> tuple[str, ...]:
    return (settings.storage.journal_dir, *settings.storage.ledger_dirs)


def _confirm(yes: bool, what: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadConfig(f"this would {what}", next_step="say --yes if that is meant")
    click.confirm(f"Really {what}?", abort=True, err=True)


# --- Advice -----------------------------------------------------------------------------------


@contextmanager
def advising(flags: Mapping[str, Any]) -> Iterator[None]:
    """Commands that errors recommend can be typed as they stand."""
    try:
        yield
    except RollbookError as error:
        error.next_step = with_flags(error.next_step, flags)
        raise


def with_flags(advice: str, flags: Mapping[str, Any]) -> str:
    words = [
        word
        for name, option in _FLAG_NAMES.items()
        for value in _values(flags.get(name))
        for word in (option, value)
    ]
    for command in (INIT, FORMAT, REJOIN, WRITE_OFF):
        if command in advice:
            return advice.replace(command, shlex.join([*command.split(), *words]))
    return advice


_FLAG_NAMES: Final = {
    "config_file": "--config",
    "metadata": "--metadata",
    "bookie_id": "--bookie-id",
    "listen": "--listen",
    "advertise": "--advertise",
    "journal_dir": "--journal-dir",
    "ledger_dir": "--ledger-dir",
}


def _values(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)

"""`rollbook server`: processes that serve until they are told to stop.

A composition root: here, and in `rollbook dev`, packages meet that know nothing of each other.

A server prints one line to standard output once it serves, `ready: … on HOST:PORT`, and its log to
standard error. SIGTERM and SIGINT end it in order, within seconds; what was acknowledged does not
depend on that. It ends with 74 when its storage has failed, else with the codes of `main`.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import click
import structlog

from rollbook.bookie.bookie import Bookie, Settings, addresses_of
from rollbook.bookie.config import BookieConfig, ServerConfig, StorageConfig
from rollbook.bookie.properties import parse_properties, translate
from rollbook.proto.addresses import is_loopback
from rollbook.proto.errors import BadConfig, BookieFailed
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
from rollbook.proto.runtime.logs import LEVELS, configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport, address_of_this_host

logger = structlog.get_logger()

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])

EXIT_STORAGE_FAILED: Final = 74
_EXIT_STUCK: Final = 1
_SECTIONS: Final = ("bookie", "storage", "server")
_STOP_S_MAX: Final = 20.0  # Whatever hangs then, hangs for ever.


@click.group(
    epilog="\b\nExamples:\n"
    "  rollbook server bookie --metadata zk://zk1,zk2,zk3/ledgers --config bookie.toml\n"
    "  rollbook server bookie --help"
)
def group() -> None:
    """Run a server until it is told to stop."""


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
        "--advertised", metavar="HOST:PORT", help="Where clients find it.  [default: --listen]"
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
    """ROLLBOOK_LISTEN, under the name by which a section's loader looks for it."""
    return {
        f"{PREFIX}BOOKIE_{name.upper()}": os.environ[variable]
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
    """`serve`: on the embedded store it may be this process that serves the others."""
    url = MetadataUrl.parse(config.metadata)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "what is in memory is gone when this process ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return await open_metadata_store(
        url, serve=serve, visit=not serve, session_timeout_s=config.session_timeout_s
    )


# --- rollbook server bookie -------------------------------------------------------------------


@group.command(
    epilog="\b\nExamples:\n"
    "  rollbook server bookie --metadata sqlite:///var/lib/rollbook/metadata.db \\\n"
    "      --journal-dir /var/lib/rollbook/journal --ledger-dir /var/lib/rollbook/ledgers\n"
    "  rollbook server bookie --metadata zk://zk1,zk2,zk3/ledgers --bookie-id bk-1 \\\n"
    "      --listen 10.0.0.5:3181 --insecure --journal-dir /ssd/journal \\\n"
    "      --ledger-dir /disk1/ledgers --ledger-dir /disk2/ledgers --http 127.0.0.1:8001\n"
    "  rollbook server bookie --config /etc/bookkeeper/bk_server.conf\n"
    "\n\b\nEvery flag can be set as ROLLBOOK_<FLAG>, as in ROLLBOOK_BOOKIE_ID, and in the file."
)
@bookie_options
@click.option("--http", metavar="HOST:PORT", help="For operators.  [default: nowhere]")
@click.option("--http-token-file", metavar="FILE", help="Who shows this token may operate.")
@click.option("--tls-listen", metavar="HOST:PORT", help="Speaks TLS there.")
@click.option("--tls-certificate", metavar="FILE", help="Its certificate, with the chain.")
@click.option("--tls-key", metavar="FILE", help="Its key.  [default: in the certificate's file]")
@click.option("--tls-authorities", metavar="FILE", help="Who must have signed its clients'.")
@click.option("--insecure", is_flag=True, help="Let it listen off loopback without TLS or token.")
@click.option("--read-only", is_flag=True, help="Take no new entries.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
def bookie(log_level: str, **flags: Any) -> None:
    """Run a bookie: it stores entries, and serves them.

    A new bookie's directories are made; those of one that was there before are checked, and have to
    be complete. `rollbook bookie doctor` explains what is wrong with them.
    """
    configure_logs(level=log_level, as_json=not sys.stderr.isatty())
    asyncio.run(_run_until_stopped(serve_bookie(load_settings(**flags))))


async def serve_bookie(settings: Settings) -> None:
    """Until it is cancelled; raises what made it impossible to go on."""
    _require_safe(settings.bookie)
    store = await open_store(settings.bookie, serve=True)
    bookie = await Bookie.open(RealMachine(), store, settings)
    try:
        await bookie.register()
        click.echo(f"ready: bookie {bookie.bookie_id} on {bookie.address}")
        sys.stdout.flush()
        error = await bookie.failed()
        logger.error("bookie_failed", bookie=bookie.bookie_id, reason=str(error))
        raise error
    finally:
        await bookie.close()


def _require_safe(config: BookieConfig) -> None:
    """What everybody can reach must ask who is there."""
    listen, _, _ = addresses_of(config)
    if not is_loopback(listen.host) and not config.insecure:
        raise BadConfig(
            f"anybody who reaches {listen} could read, add and delete there",
            next_step="speak TLS there (--tls-listen), or say --insecure in a network you trust",
        )


async def _run_until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(serving)

    def stop() -> None:
        loop.call_later(_STOP_S_MAX, os._exit, _EXIT_STUCK)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        return
    except (OSError, BookieFailed) as error:
        logger.error("storage_failed", reason=str(error))
        sys.exit(EXIT_STORAGE_FAILED)

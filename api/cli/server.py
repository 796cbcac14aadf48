"""`rollbook server`: processes that serve until they are told to stop.

A composition root: here, and in `rollbook dev`, packages meet that know nothing of each other.

A server prints one line to standard output once it serves, `ready: … on HOST:PORT`, and its log to
standard error. SIGTERM and SIGINT end it in order, within seconds; what was acknowledged does not
depend on that. It ends with 74 when its storage has failed, else with the codes of `main`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import click
import structlog

from rollbook import __version__
from rollbook.api.cli.bookie_identity import (
    RealMachine,
    advising,
    bookie_options,
    load_settings,
    open_store,
)
from rollbook.api.cli.output import examples
from rollbook.bookie.bookie import Bookie, Settings, addresses_of, tls_address_of
from rollbook.bookie.config import BookieConfig
from rollbook.proto.addresses import is_loopback, parse_address
from rollbook.proto.errors import BadConfig, BookieFailed
from rollbook.proto.ports import Address
from rollbook.proto.runtime.collector import calm_collector
from rollbook.proto.runtime.logs import LEVELS, configure_logs
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.tls import TlsFiles, server_context

logger = structlog.get_logger()

EXIT_STORAGE_FAILED: Final = 74
DEFAULT_HTTP_PORT: Final = 8001
_STOP_S_MAX: Final = 20  # Whatever hangs then, hangs for ever.


@click.group(
    epilog=examples(
        "rollbook server bookie --config bookie.toml",
        "rollbook server bookie --config /etc/bookkeeper/bk_server.conf",
        "rollbook server bookie --help",
    )
)
def group() -> None:
    """Run a server until it is told to stop."""


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
@click.option("--http-tls", is_flag=True, help="Speaks TLS there, with --tls-certificate.")
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
    try:
        with advising(flags):
            asyncio.run(_run_until_stopped(serve_bookie(load_settings(**flags))))
    except StorageFailed:
        sys.exit(EXIT_STORAGE_FAILED)


class StorageFailed(Exception):
    """What was not acknowledged by then may be lost; a new start finds out."""


async def serve_bookie(settings: Settings) -> None:
    """Until it is cancelled; raises what made it impossible to go on."""
    _require_safe(settings.bookie)
    tls = (
        SocketTransport(server_tls=server_context(_tls_files(settings.bookie)))
        if settings.bookie.tls_listen
        else None
    )
    _, _, bookie_id = addresses_of(settings.bookie)
    logger.info("bookie_started", bookie=bookie_id, version=__version__, pid=os.getpid())
    store = await open_store(settings.bookie, serve=True)
    machine = RealMachine()
    bookie = await Bookie.open(machine, store, settings, tls)
    reason = "told to"
    try:
        async with _admin_pages(bookie, machine) as http:
            try:
                await bookie.register(http)
                calm_collector()
                _say_ready(bookie, http)
                raise await bookie.failed()
            finally:
                await bookie.leave()  # First of all, whoever asks for pages right now.
    except Exception as error:
        reason = str(error) or type(error).__name__
        logger.error("bookie_failed", bookie=bookie_id, reason=reason)
        if isinstance(error, OSError | BookieFailed):
            raise StorageFailed(reason) from error
        raise
    finally:
        await bookie.close()
        logger.info("bookie_stopped", bookie=bookie_id, reason=reason)


def _say_ready(bookie: Bookie, http: Address | None) -> None:
    """For people and for scripts: its last word is where the bookie listens."""
    pages = f" (http on {http})" if http else ""
    with suppress(OSError):  # Nobody has to listen.
        click.echo(f"ready: bookie {bookie.bookie_id}{pages} on {bookie.address}")
        sys.stdout.flush()
    logger.info("bookie_ready", bookie=bookie.bookie_id, address=str(bookie.address))


@asynccontextmanager
async def _admin_pages(bookie: Bookie, machine: RealMachine) -> AsyncIterator[Address | None]:
    """Where operators can ask; None if nowhere."""
    config = bookie.config.bookie
    if not config.http:
        yield None
        return
    from rollbook.api.rest.bookie import AdminServer  # FastAPI: a third of a second.
    from rollbook.api.rest.server import HttpConfig
    from rollbook.bookie.admin import Admin

    where = HttpConfig(
        _http_address(config),
        token_file=config.http_token_file or None,
        tls=_tls_files(config) if config.http_tls else None,
        insecure=config.insecure,
    )
    server = await AdminServer.start(Admin(bookie, machine.disk, machine.clock), where)
    try:
        yield server.address
    finally:
        await server.close()


def _http_address(config: BookieConfig) -> Address:
    return parse_address(
        config.http, "http", default_host="127.0.0.1", default_port=DEFAULT_HTTP_PORT
    )


def _tls_files(config: BookieConfig) -> TlsFiles:
    return TlsFiles(config.tls_certificate, config.tls_key, config.tls_authorities)


def _require_safe(config: BookieConfig) -> None:
    """What everybody can reach must ask who is there."""
    if config.insecure:
        return
    listen, _, _ = addresses_of(config)
    if not is_loopback(listen.host):
        raise BadConfig(
            f"anybody who reaches {listen} could read, add and fence there",
            next_step="say --listen 127.0.0.1:3181 and --tls-listen HOST:PORT, "
            "or --insecure in a network you trust",
        )
    tls_listen = tls_address_of(config)
    if tls_listen and not is_loopback(tls_listen.host) and not config.tls_authorities:
        raise BadConfig(
            f"anybody who reaches {tls_listen} could read, add and fence there",
            next_step="say whose clients may with --tls-authorities FILE, or --insecure",
        )


async def _run_until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(serving)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if not is_stopping:  # Whoever says it twice must not break off the ending.
            is_stopping = True
            signal.alarm(_STOP_S_MAX)  # The kernel's: it goes off even if a disk hangs.
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await task

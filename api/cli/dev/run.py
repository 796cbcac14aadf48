"""The servers that `rollbook dev` and `rollbook server all` run until they are stopped."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import click

from rollbook.api.cli.dev.local_cluster import (
    DASHBOARD_PORT,
    LARGE,
    SMALL,
    LocalCluster,
    Sizes,
    dashboard_address,
    local_cluster,
    require_free,
    usual_or_free,
)
from rollbook.api.cli.run_until_signal import until_stopped
from rollbook.api.cli.server.log import DEFAULT_PORT, REST_PORT, check_rest_origins
from rollbook.api.rest.callback_target import LOOPBACK_HOSTS
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.addresses import parse_address
from rollbook.proto.errors import BadConfig
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.gc_tuning import calm_collector
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.malloc_tuning import keep_freed_memory
from rollbook.proto.runtime.open_files import allow_open_files

_OPEN_FILES: Final = 16_384
_STOP_S_MAX: Final = 30
_HOST: Final = "127.0.0.1"


def run_dev(
    bookies: int,
    data: str,
    listen: str | None,
    rest: str | None,
    http: str | None,
    log_level: str,
    rest_origin: tuple[str, ...] = (),
) -> None:
    """Runs a cluster for people: prints the addresses of its servers."""
    configure_logs(level=log_level, as_json=False)
    folder = _folder(data)
    where = _on_this_machine("--listen", listen, DEFAULT_PORT)
    # If gRPC takes a free port, HTTP and the dashboard also take free ports.
    usual = 0 if where.endswith(":0") else REST_PORT
    config = LogServerConfig(
        metadata="",
        listen=where,
        rest=_on_this_machine("--rest", rest, usual),
        rest_origin=rest_origin,
    )
    check_rest_origins(config)
    dashboard = _on_this_machine("--http", http, usual and DASHBOARD_PORT)
    _run(_serve(folder, bookies, config, SMALL, dashboard, _say_to_people, LOOPBACK_HOSTS))


def _on_this_machine(flag: str, typed: str | None, usual_port: int) -> str:
    """Returns the typed address, or the usual port if it is free, otherwise a free port. Raises `BadConfig` for an
    address off loopback, because `rollbook dev` has no access control.
    """
    text = typed or str(usual_or_free(Address(_HOST, usual_port)))
    address = parse_address(text, flag, default_host=_HOST, default_port=usual_port)
    if not is_loopback(address.host):
        raise BadConfig(
            f"`rollbook dev` serves only this machine, and {address.host} is not loopback",
            next_step=f"pass {flag} {_HOST}:{address.port}, or run `rollbook server all`",
        )
    if typed:
        require_free(address)
    return str(address)


def _folder(data: str) -> str:
    """Returns the absolute path. Raises `BadConfig` if `data` is empty: an unset variable in a script must not
    select the current directory.
    """
    if not data:
        raise BadConfig(
            "--data is empty", next_step="use --data DIR; `--data .` is the current directory"
        )
    return os.path.abspath(data)


def run_all(bookies: int, data: str, config: LogServerConfig, http: str, log_level: str) -> None:
    """Runs a cluster for scripts: prints one line when it is ready."""
    if http:
        # Reports a port that is in use before any server starts.
        require_free(dashboard_address(http, config))
    check_rest_origins(config)
    configure_logs(level=log_level, as_json=not sys.stderr.isatty())
    _run(_serve(_folder(data), bookies, config, LARGE, http, _say_to_scripts))


def _run(serving: Coroutine[Any, Any, None]) -> None:
    allow_open_files(_OPEN_FILES)
    keep_freed_memory()
    asyncio.run(until_stopped(serving, _STOP_S_MAX))


async def _serve(
    data: str,
    bookies: int,
    config: LogServerConfig,
    sizes: Sizes,
    http: str,
    say: Callable[[LocalCluster], None],
    callback_hosts: tuple[str, ...] = (),
) -> None:
    async with local_cluster(data, bookies, config, sizes, http, callback_hosts) as cluster:
        calm_collector()
        with suppress(OSError):  # Standard output may be closed.
            say(cluster)
            sys.stdout.flush()
        raise await cluster.failed()


def _say_to_people(cluster: LocalCluster) -> None:
    bookies = ", ".join(f"{name} {each.address}" for name, each in cluster.bookies.items())
    click.echo(f"logs      log://{cluster.logs.address}")
    click.echo(f"rest      {cluster.logs.http}/v1")
    click.echo(f"dashboard {cluster.dashboard}")
    click.echo(f"metadata  {cluster.url}")
    click.echo(f"bookies   {bookies}")
    _say_ready(cluster)


def _say_to_scripts(cluster: LocalCluster) -> None:
    if cluster.logs.http:
        click.echo(f"rest {cluster.logs.http}")
    if cluster.dashboard:
        click.echo(f"dashboard {cluster.dashboard}")
    _say_ready(cluster)


def _say_ready(cluster: LocalCluster) -> None:
    count = len(cluster.bookies)
    click.echo(f"ready: {count} bookie{'s' if count > 1 else ''}, logs on {cluster.logs.address}")

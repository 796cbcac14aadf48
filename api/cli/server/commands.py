"""The commands of `rollbook server`, which run servers until they are stopped.

A server that is ready prints one line to standard output, `ready: … on HOST:PORT`; its log goes to standard
error. SIGTERM and SIGINT shut it down in order, within seconds. Acknowledged data is safe even if the server is
killed. The server exits with 74 if its storage has failed, otherwise with the codes in `main`.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from rollbook.api.cli.bookie.options import LOG_LEVEL_VARIABLE, LOG_LEVELS, bookie_options
from rollbook.api.cli.click_types import Number, WholeNumber
from rollbook.api.cli.cors_option import rest_origin_option
from rollbook.api.cli.output import examples

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    epilog=examples(
        "rollbook server bookie --config bookie.toml",
        "rollbook server bookie --config /etc/bookkeeper/bk_server.conf",
        "rollbook server bookie --help",
        "rollbook server log --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook server recovery --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook server all --data /var/lib/rollbook",
    )
)
def group() -> None:
    """Run a server until it is stopped."""


def _log_level_option(command: F) -> F:
    """Adds the option `--log-level`. Its default is in the settings and not in the option, because a file may
    change it.
    """
    return click.option(
        "--log-level",
        "log_level",
        type=click.Choice(LOG_LEVELS),
        envvar=LOG_LEVEL_VARIABLE,
        help="[default: info]",
    )(command)


def _startup_option(command: F) -> F:
    return click.option(
        "--startup-s",
        "startup_s",
        type=Number(0, 86_400),
        metavar="SECONDS",
        help="Seconds to wait for a missing metadata store or cluster.  [default: 60]",
    )(command)


# --- rollbook server bookie -------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook server bookie --metadata sqlite:///var/lib/rollbook/metadata.db \\",
        "    --journal-dir /var/lib/rollbook/journal --ledger-dir /var/lib/rollbook/ledgers",
        "rollbook server bookie --metadata zk://zk1,zk2,zk3/ledgers --bookie-id bk-1 \\",
        "    --listen 10.0.0.5:3181 --insecure --journal-dir /ssd/journal \\",
        "    --ledger-dir /disk1/ledgers --ledger-dir /disk2/ledgers --http 127.0.0.1:8001",
        "rollbook server bookie --config /etc/bookkeeper/bk_server.conf",
    )
)
@bookie_options
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address to serve the admin pages on; :PORT uses all addresses.  [default: none]",
)
@click.option(
    "--http-token-file", metavar="FILE", help="The file with the token that operators send."
)
@click.option(
    "--access-file",
    metavar="FILE",
    help="The file with the rights of HTTP callers, made by `rollbook access`.",
)
@click.option(
    "--http-tls", is_flag=True, help="Serve the admin pages over TLS, with --tls-certificate."
)
@click.option(
    "--tls-listen", metavar="HOST:PORT", help="Address to listen on for clients with TLS."
)
@click.option("--tls-certificate", metavar="FILE", help="The server's certificate with its chain.")
@click.option(
    "--tls-key",
    metavar="FILE",
    help="The key of --tls-certificate.  [default: in the certificate's file]",
)
@click.option(
    "--tls-authorities", metavar="FILE", help="The CAs that must have signed clients' certificates."
)
@click.option(
    "--insecure", is_flag=True, help="Allow listening off loopback without TLS or a token."
)
@click.option("--read-only", is_flag=True, help="Accept no new entries.")
@click.option("--with-recovery", is_flag=True, help="Also run a recovery server in this process.")
@_startup_option
@_log_level_option
def bookie(**flags: Any) -> None:
    """Run a bookie, which stores entries and serves them.

    The directories of a new bookie are created. Those of an existing bookie are checked, and must be
    complete; `rollbook bookie doctor` explains what is wrong with them.

    Every flag can also be set in the environment as ROLLBOOK_<FLAG>, such as ROLLBOOK_BOOKIE_ID, and in the
    file. In ROLLBOOK_LEDGER_DIR, directories are separated by commas.
    """
    from rollbook.api.cli.server.bookie import StorageFailed, run_bookie  # `--help` is quick.
    from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED

    try:
        run_bookie(flags)
    except StorageFailed:
        sys.exit(EXIT_STORAGE_FAILED)


# --- rollbook server log ----------------------------------------------------------------------

_LOG_SERVER_OPTIONS: Final = (
    click.option(
        "--listen",
        metavar="HOST:PORT",
        help="Address to listen on; :PORT uses all addresses, port 0 a free port.  [default: 127.0.0.1:7400]",
    ),
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        help="Address that clients connect to.  [default: --listen, or the host's name]",
    ),
    click.option(
        "--rest",
        metavar="HOST:PORT",
        help="Address to serve HTTP on; :PORT uses all addresses.  [default: none]",
    ),
    rest_origin_option,
    click.option(
        "--server-name",
        metavar="NAME",
        help="The server's permanent name.  [default: the advertised HOST:PORT]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        help="The file with the token that lets clients use the logs.",
    ),
    click.option(
        "--access-file",
        metavar="FILE",
        help="The file with the rights of clients, made by `rollbook access`.",
    ),
    click.option(
        "--tls-certificate", metavar="FILE", help="The server's certificate with its chain."
    ),
    click.option(
        "--tls-key",
        metavar="FILE",
        help="The key of --tls-certificate.  [default: in the certificate's file]",
    ),
    click.option(
        "--tls-authorities",
        metavar="FILE",
        help="The CAs that must have signed clients' certificates.",
    ),
    click.option(
        "--peer-authorities",
        metavar="FILE",
        help="The CAs that sign other log servers' certificates.  [default: --tls-authorities, or the "
        "system's CAs]",
    ),
    click.option(
        "--tls-name",
        metavar="NAME",
        help="The name in other log servers' certificates.  [default: each server's advertised name]",
    ),
    click.option(
        "--insecure", is_flag=True, help="Allow listening off loopback without TLS and a token."
    ),
)

_BOOKIE_TLS_OPTIONS: Final = (
    click.option(
        "--bookie-authorities",
        "bookie_authorities",
        metavar="FILE",
        help="Connect to bookies over TLS; these CAs sign their certificates.",
    ),
    click.option(
        "--bookie-certificate", metavar="FILE", help="The certificate for bookies that request one."
    ),
    click.option(
        "--bookie-key",
        metavar="FILE",
        help="The key of --bookie-certificate.  [default: in the certificate's file]",
    ),
)


def _bookie_tls_options(command: F) -> F:
    for option in reversed(_BOOKIE_TLS_OPTIONS):
        command = option(command)
    return command


def _log_server_options(command: F) -> F:
    for option in reversed(_LOG_SERVER_OPTIONS):
        command = option(command)
    return command


@group.command(
    epilog=examples(
        "rollbook server log --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook server log --metadata zk://zk1,zk2,zk3/ledgers --listen 10.0.0.5:7400 --insecure",
        "rollbook server log --metadata sqlite:///metadata.db --rest 127.0.0.1:7480",
        "rollbook server log --metadata zk://zk1/ledgers --listen :7400 --advertise log-1 \\",
        "    --tls-certificate log-1.pem --token-file token",
    )
)
@click.option(
    "--metadata",
    metavar="URL",
    help="The metadata store: zk://host,host/ledgers or sqlite:///path.",
)
@_log_server_options
@_bookie_tls_options
@click.option(
    "--config", "config_file", metavar="FILE", envvar="ROLLBOOK_CONFIG", help="A TOML file."
)
@_startup_option
@_log_level_option
def log(**flags: Any) -> None:
    """Run a log server, which owns logs and serves appends and reads.

    Any number of log servers share the logs of a cluster. A server that is stopped hands its logs over to
    the others. If a server dies, the others take its logs over.

    Every flag can also be set in the environment as ROLLBOOK_<FLAG>, such as ROLLBOOK_METADATA, and in the
    file.
    """
    from rollbook.api.cli.server.log import run_log_server  # `--help` is quick.

    run_log_server(flags)


# --- rollbook server recovery -----------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook server recovery --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook server recovery --metadata zk://zk1,zk2,zk3/ledgers --no-auditor",
        "rollbook server recovery --metadata zk://zk1,zk2,zk3/ledgers --http 127.0.0.1:7500",
        "rollbook server recovery --config recovery.toml --log-level debug",
    )
)
@click.option(
    "--metadata",
    metavar="URL",
    help="The metadata store: zk://host,host/ledgers or sqlite:///path.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The server's name in elections and locks.  [default: the host's name]",
)
@click.option("--no-auditor", is_flag=True, help="Do not take part in the election of the auditor.")
@click.option("--no-worker", is_flag=True, help="Do not copy entries.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address to serve management, dashboard and metrics on; :PORT uses all addresses.  [default: none]",
)
@click.option(
    "--only-http",
    is_flag=True,
    help="Serve only --http: take part in no election, and copy nothing.",
)
@click.option(
    "--http-token-file",
    metavar="FILE",
    help="The file with the token that lets HTTP callers do everything.",
)
@click.option(
    "--access-file",
    metavar="FILE",
    help="The file with the rights of HTTP callers, made by `rollbook access`.",
)
@click.option(
    "--http-tls-certificate", metavar="FILE", help="The certificate of --http, with its chain."
)
@click.option(
    "--http-tls-key",
    metavar="FILE",
    help="The key of --http-tls-certificate.  [default: in the certificate's file]",
)
@click.option(
    "--log-tls-authorities",
    metavar="FILE",
    help="The CAs that must have signed the log servers' certificates, for the dashboard.",
)
@click.option(
    "--log-tls-name",
    metavar="NAME",
    help="The name in the log servers' certificates.  [default: each server's advertised name]",
)
@click.option(
    "--log-metrics-token-file",
    metavar="FILE",
    help="The file with the token for log servers' /metrics, which the dashboard's charts need.",
)
@click.option(
    "--callback-hosts",
    metavar="HOST,HOST…",
    help="Hosts to which callbacks may be sent; HOST:PORT allows only this port.  [default: none]",
)
@click.option(
    "--callback-ca-file",
    metavar="FILE",
    help="The CAs that sign the certificates of callbacks' receivers.  [default: the system's CAs]",
)
@click.option(
    "--insecure", is_flag=True, help="Serve metrics off loopback without TLS and a token."
)
@click.option(
    "--bookie-token-file",
    metavar="FILE",
    help="The file with the token for bookies' admin pages, through which doubts are healed.",
)
@click.option(
    "--bookie-ca-file",
    metavar="FILE",
    help="The CAs that sign the certificates of bookies' admin pages.",
)
@click.option(
    "--tls-authorities",
    "--bookie-authorities",
    "tls_authorities",
    metavar="FILE",
    help="Connect to bookies over TLS; these CAs sign their certificates.",
)
@click.option(
    "--tls-certificate",
    "--bookie-certificate",
    "tls_certificate",
    metavar="FILE",
    help="The certificate for bookies that request one.",
)
@click.option(
    "--tls-key",
    "--bookie-key",
    "tls_key",
    metavar="FILE",
    help="The key of --tls-certificate.  [default: in the certificate's file]",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="ROLLBOOK_CONFIG",
    help="A TOML file, or BookKeeper's bk_server.conf.",
)
@_startup_option
@_log_level_option
def recovery(**flags: Any) -> None:
    """Run a recovery server, which restores lost copies of entries.

    It copies the entries of lost bookies to other bookies. Any number of recovery servers share the work. One of
    them is elected as auditor, and marks ledgers that lack copies. BookKeeper's autorecovery may run in the same
    cluster: it takes part in the same election and uses the same marks.

    Every flag can also be set in the environment as ROLLBOOK_<FLAG>, such as ROLLBOOK_METADATA, and in the
    file.
    """
    from rollbook.api.cli.server.recovery import run_recovery_server  # `--help` is quick.

    run_recovery_server(flags)


# --- rollbook server all ----------------------------------------------------------------------


@group.command(
    "all",
    epilog=examples(
        "rollbook server all --data /var/lib/rollbook",
        "rollbook server all --data /var/lib/rollbook --bookies 1 --listen 127.0.0.1:7400",
        "rollbook server all --data /var/lib/rollbook --rest 127.0.0.1:7480",
    ),
)
@click.option(
    "--data",
    metavar="DIR",
    required=True,
    help="The directory of all data; it is created if it does not exist.",
)
@click.option(
    "--bookies",
    type=WholeNumber(1, 16),
    default=3,
    show_default=True,
    help="Number of bookies. All use this machine's disk: copies protect against bit rot, but not against loss of the "
    "disk.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Address to serve management and dashboard on.  [default: none]",
)
@_log_server_options
@_log_level_option
def everything(
    data: str, bookies: int, http: str | None, log_level: str | None, **flags: Any
) -> None:
    """Run a whole cluster on this machine, in this process.

    It works like `rollbook dev`, but uses as much memory as a server, never replaces a log server's port that is
    in use with a free one, serves HTTP and the dashboard only if you ask for them, and can have TLS and access
    control.
    """
    from rollbook.api.cli.dev.run import run_all  # `--help` is quick.
    from rollbook.logservice.config import LogServerConfig

    given = {name: value for name, value in flags.items() if value}
    config = LogServerConfig(metadata="", **given)
    run_all(bookies, data, config, http or "", log_level or "info")

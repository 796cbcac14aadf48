"""The commands of `rollbook server`, which run servers until they are stopped.

A server that is ready prints one line to standard output, `ready: … on HOST:PORT`; its log goes to standard
error. SIGTERM and SIGINT shut it down in order, within seconds. Acknowledged data is safe even if it is
killed. It exits with 74 if its storage has failed, otherwise with the codes in `main`.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from rollbook.api.cli.bookie.options import LOG_LEVEL_VARIABLE, LOG_LEVELS, bookie_options
from rollbook.api.cli.click_types import Number, WholeNumber
from rollbook.api.cli.output import examples
from rollbook.api.cli.rest_origin_option import rest_origin_option

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
    """Adds an option without a default of its own: the default is in the settings, because a file may change
    it.
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
        help="Waits so long for a missing metadata store or cluster.  [default: 60]",
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
    "--http", metavar="HOST:PORT", help="For operators; :PORT is every address.  [default: nowhere]"
)
@click.option("--http-token-file", metavar="FILE", help="Who shows this token may operate.")
@click.option("--access-file", metavar="FILE", help="Who may do what there: `rollbook access`.")
@click.option("--http-tls", is_flag=True, help="Speaks TLS there, with --tls-certificate.")
@click.option("--tls-listen", metavar="HOST:PORT", help="Speaks TLS there.")
@click.option("--tls-certificate", metavar="FILE", help="Its certificate, with the chain.")
@click.option("--tls-key", metavar="FILE", help="Its key.  [default: in the certificate's file]")
@click.option(
    "--tls-authorities", metavar="FILE", help="Who must have signed its clients' certificates."
)
@click.option("--insecure", is_flag=True, help="Let it listen off loopback without TLS or token.")
@click.option("--read-only", is_flag=True, help="Take no new entries.")
@click.option("--with-recovery", is_flag=True, help="Run a recovery server in its process, too.")
@_startup_option
@_log_level_option
def bookie(**flags: Any) -> None:
    """Run a bookie: it stores entries, and serves them.

    A new bookie's directories are made; those of one that was there before are checked, and have to
    be complete. `rollbook bookie doctor` explains what is wrong with them.

    Every flag can be set as ROLLBOOK_<FLAG>, as in ROLLBOOK_BOOKIE_ID, and in the file; several
    directories in ROLLBOOK_LEDGER_DIR are separated by commas.
    """
    from rollbook.api.cli.server.bookie import StorageFailed, run_bookie  # `--help` is quick.
    from rollbook.proto.runtime.exit_status import EXIT_STORAGE_FAILED

    try:
        run_bookie(flags)
    except StorageFailed:
        sys.exit(EXIT_STORAGE_FAILED)


# --- rollbook server log ----------------------------------------------------------------------

_LOG_SERVER_OPTIONS: Final = (
    click.option(
        "--listen",
        metavar="HOST:PORT",
        help=":PORT is every address; port 0 takes a free one.  [default: 127.0.0.1:7400]",
    ),
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        help="Where clients find it.  [default: --listen, or the host's name]",
    ),
    click.option(
        "--rest",
        metavar="HOST:PORT",
        help="Serves HTTP there; :PORT is every address.  [default: nowhere]",
    ),
    rest_origin_option,
    click.option(
        "--server-name",
        metavar="NAME",
        help="Its name for ever.  [default: the advertised HOST:PORT]",
    ),
    click.option("--token-file", metavar="FILE", help="Who shows this token may use the logs."),
    click.option("--access-file", metavar="FILE", help="Who may do what: `rollbook access`."),
    click.option("--tls-certificate", metavar="FILE", help="Its certificate, with the chain."),
    click.option(
        "--tls-key", metavar="FILE", help="Its key.  [default: in the certificate's file]"
    ),
    click.option(
        "--tls-authorities", metavar="FILE", help="Who must have signed its clients' certificates."
    ),
    click.option(
        "--peer-authorities",
        metavar="FILE",
        help="Who signs other log servers' certificates.  [default: --tls-authorities, or who the "
        "machine trusts]",
    ),
    click.option(
        "--tls-name",
        metavar="NAME",
        help="In other log servers' certificates.  [default: the advertised one]",
    ),
    click.option(
        "--insecure", is_flag=True, help="Let it listen off loopback without TLS and token."
    ),
)

_BOOKIE_TLS_OPTIONS: Final = (
    click.option(
        "--bookie-authorities",
        "bookie_authorities",
        metavar="FILE",
        help="Speaks TLS to bookies; who signs their certificates.",
    ),
    click.option("--bookie-certificate", metavar="FILE", help="Shown to bookies that want one."),
    click.option(
        "--bookie-key", metavar="FILE", help="Its key.  [default: in the certificate's file]"
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
@click.option("--metadata", metavar="URL", help="zk://host,host/ledgers or sqlite:///path.")
@_log_server_options
@_bookie_tls_options
@click.option("--config", "config_file", metavar="FILE", envvar="ROLLBOOK_CONFIG", help="TOML.")
@_startup_option
@_log_level_option
def log(**flags: Any) -> None:
    """Run a log server: it owns logs, appends to them, and reads them.

    Any number of them share the logs of a cluster. When one is stopped it hands its logs over to the
    others; when it dies they take them.

    Every flag can be set as ROLLBOOK_<FLAG>, as in ROLLBOOK_METADATA, and in the file.
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
@click.option("--metadata", metavar="URL", help="zk://host,host/ledgers or sqlite:///path.")
@click.option(
    "--name", metavar="NAME", help="Its name in votes and locks.  [default: the host's name]"
)
@click.option("--no-auditor", is_flag=True, help="Do not stand for auditor.")
@click.option("--no-worker", is_flag=True, help="Make no copies.")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serves management, dashboard and metrics; :PORT is every address.  [default: nowhere]",
)
@click.option("--only-http", is_flag=True, help="Neither vote nor copy: serve --http alone.")
@click.option("--http-token-file", metavar="FILE", help="Who shows this token may do everything.")
@click.option("--access-file", metavar="FILE", help="Who may do what: `rollbook access`.")
@click.option("--http-tls-certificate", metavar="FILE", help="Of --http, with the chain.")
@click.option(
    "--http-tls-key", metavar="FILE", help="Its key.  [default: in the certificate's file]"
)
@click.option(
    "--log-tls-authorities",
    metavar="FILE",
    help="Who must have signed the log servers' certificates, for the dashboard.",
)
@click.option(
    "--log-tls-name",
    metavar="NAME",
    help="In the log servers' certificates.  [default: the advertised one]",
)
@click.option(
    "--log-metrics-token-file",
    metavar="FILE",
    help="Shown to log servers for /metrics, from which the dashboard draws its charts.",
)
@click.option(
    "--callback-hosts",
    metavar="HOST,HOST…",
    help="Callbacks may be sent there; HOST:PORT allows this port alone.  [default: nowhere]",
)
@click.option(
    "--callback-ca-file",
    metavar="FILE",
    help="Who signs the receivers' certificates.  [default: whom the system trusts]",
)
@click.option("--insecure", is_flag=True, help="Show metrics off loopback without TLS and token.")
@click.option(
    "--bookie-token-file",
    metavar="FILE",
    help="Of bookies' admin pages: those in doubt are healed.",
)
@click.option("--bookie-ca-file", metavar="FILE", help="Who signs the certificates of those pages.")
@click.option(
    "--tls-authorities",
    "--bookie-authorities",
    "tls_authorities",
    metavar="FILE",
    help="Speaks TLS to bookies; who signs their certificates.",
)
@click.option(
    "--tls-certificate",
    "--bookie-certificate",
    "tls_certificate",
    metavar="FILE",
    help="Shown to bookies that want one.",
)
@click.option(
    "--tls-key",
    "--bookie-key",
    "tls_key",
    metavar="FILE",
    help="Its key.  [default: in the certificate's file]",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="ROLLBOOK_CONFIG",
    help="TOML, or a bk_server.conf of BookKeeper.",
)
@_startup_option
@_log_level_option
def recovery(**flags: Any) -> None:
    """Run a recovery server: it notices lost bookies and makes their copies elsewhere.

    Any number of them share the work; one of them is elected as auditor, and marks ledgers that lack
    copies. BookKeeper's autorecovery may run beside it, in the same election and on the same marks.

    Every flag can be set as ROLLBOOK_<FLAG>, as in ROLLBOOK_METADATA, and in the file.
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
@click.option("--data", metavar="DIR", required=True, help="Made if need be.")
@click.option(
    "--bookies",
    type=WholeNumber(1, 16),
    default=3,
    show_default=True,
    help="All on this machine's disk: they guard against rot, not against its loss.",
)
@click.option(
    "--http", metavar="HOST:PORT", help="Serves management and dashboard.  [default: nowhere]"
)
@_log_server_options
@_log_level_option
def everything(
    data: str, bookies: int, http: str | None, log_level: str | None, **flags: Any
) -> None:
    """Run a whole cluster on this machine, in this process.

    As `rollbook dev` does, with the memory of a server, on the port that it was given.
    """
    from rollbook.api.cli.dev.run import run_all  # `--help` is quick.
    from rollbook.logservice.config import LogServerConfig

    given = {name: value for name, value in flags.items() if value}
    config = LogServerConfig(metadata="", **given)
    run_all(bookies, data, config, http or "", log_level or "info")

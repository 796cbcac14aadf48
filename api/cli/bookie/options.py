"""The flags that select a bookie. `server/bookie_settings.py` turns them into settings.

This module imports only click, because every `--help` loads it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LOG_LEVELS: Final = (
    "debug",
    "info",
    "warning",
    "error",
)  # A copy of the levels in `proto/runtime/logging_setup.py`: importing that module would load structlog.
LOG_LEVEL_VARIABLE: Final = "ROLLBOOK_LOG_LEVEL"

_OPTIONS: Final = (
    click.option(
        "--metadata",
        metavar="URL",
        help="The metadata store: zk://host,host/ledgers or sqlite:///path.",
    ),
    click.option(
        "--bookie-id",
        metavar="ID",
        help="The bookie's permanent id.  [default: the advertised HOST:PORT]",
    ),
    click.option(
        "--listen",
        metavar="HOST:PORT",
        help="Address to listen on; :PORT uses all addresses, port 0 a free port.  [default: 127.0.0.1:3181]",
    ),
    click.option(
        "--advertise",
        metavar="HOST:PORT",
        help="Address that clients connect to.  [default: --listen, or the host's name]",
    ),
    click.option(
        "--journal-dir",
        metavar="DIR",
        multiple=True,
        help="Directory of the journal, on a fast disk if there is one.",
    ),
    click.option(
        "--ledger-dir",
        metavar="DIR",
        multiple=True,
        help="Directory for ledgers; repeat it for each disk.",
    ),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        envvar="ROLLBOOK_CONFIG",
        help="A TOML file, or BookKeeper's bk_server.conf.",
    ),
)


def bookie_options(command: F) -> F:
    """Adds the options for one bookie's id and the directories of its files."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command

"""The commands of `rollbook cluster`, which create and inspect a cluster."""

from typing import TYPE_CHECKING, Any, Final

import click

from rollbook.api.cli.click_types import WholeNumber
from rollbook.api.cli.log import commands as log
from rollbook.api.cli.metadata_option import WHERE, metadata_option, metadata_or_server
from rollbook.api.cli.output import (
    bare_output_option,
    examples,
    list_output_option,
    output_option,
    show_facts,
    show_rows,
)
from rollbook.proto.formats.layout import Layout

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess

_metadata_option: Final = metadata_option(
    f"{WHERE}  [default: the context's; if it has none, a log server is asked]"
)
_LAYOUTS: Final = [layout.value for layout in Layout if layout.takes_new_ledgers]


@click.group(
    epilog=examples(
        "rollbook cluster init --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook cluster init --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster info --metadata zk://zk1,zk2,zk3/ledgers -o json",
    )
)
def group() -> None:
    """Initialise and inspect a cluster."""


@group.command(
    epilog=examples(
        "rollbook cluster init --metadata sqlite:///var/lib/rollbook/metadata.db",
        "rollbook cluster init --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster init --metadata zk://zk1/ledgers --layout longhierarchical --if-missing",
    )
)
@metadata_option(WHERE, required=True)  # A new cluster needs an explicit URL.
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    help="The layout of the ledgers' metadata in the store.  [default: the URL's, else hierarchical]",
)
@click.option(
    "--if-missing", is_flag=True, help="Succeed if the cluster already exists, for scripts."
)
@output_option
def init(url: str, layout: str | None, if_missing: bool, output: str) -> None:
    """Create a new cluster. The command fails if one already exists."""
    from rollbook.api.cli.cluster.actions import make_cluster  # `--help` is quick.

    show_facts(make_cluster(url, layout, if_missing=if_missing), output)


@group.command(
    epilog=examples(
        "rollbook cluster info --server log://10.0.0.5:7400",
        "rollbook cluster info --context prod",
        "rollbook cluster info --metadata zk://zk1/ledgers -o json | jq '.bookies[].id'",
    )
)
@_metadata_option
@log.with_access
@output_option
def info(access: "LogAccess", url: str | None, output: str) -> None:
    """Show a cluster's identity and its bookies.

    A bookie is writable, read-only, or down. A bookie that is down belongs to the cluster, but is not
    registered. Without the metadata, the command shows what a log server knows about the cluster.
    """
    metadata = metadata_or_server(click.get_current_context(), url)
    if metadata is None:
        from rollbook.api.cli.cluster import info_from_log_servers

        facts, servers = info_from_log_servers.look_at_cluster(access)
        if output != "table":
            show_facts({**facts, "servers": servers}, output)
            return
        show_facts(facts, output)
        click.echo("")
        show_rows(("id", "state", "address", "logs_owned", "version"), servers, output)
        return
    from rollbook.api.cli.cluster.actions import look_at_cluster

    facts, bookies = look_at_cluster(metadata.url)
    if output != "table":
        show_facts({**facts, "bookies": bookies}, output)
        return
    show_facts(facts, output)
    click.echo("")
    show_rows(("id", "state", "address", "incarnation"), bookies, output)


@group.command(
    epilog=examples(
        "rollbook cluster health",
        "rollbook cluster health --context prod || alert",
        "rollbook cluster health --metadata zk://zk1/ledgers -o json | jq -r .health",
    )
)
@_metadata_option
@log.with_access
@output_option
def health(access: "LogAccess", url: str | None, output: str) -> None:
    """Show whether bookies and log servers can be reached from here.

    Without the metadata, it shows what a log server sees. The command exits with 0 if all is well. It exits
    with 8 if the cluster works, but a member is down, read-only, draining or unreachable, or has a wrong clock, if
    logs are written with fewer copies than configured or cannot be opened, if segments are lost, or if fewer
    bookies are writable than all copies of a new log need. It exits with 5 if fewer bookies are writable than the ack quorum of a new
    log needs, or if no log server can be reached.
    """
    from rollbook.api.cli.cluster.health import CODES, look_at_health

    metadata = metadata_or_server(click.get_current_context(), url)
    if metadata is None:
        from rollbook.api.cli.cluster import info_from_log_servers

        verdict, members = info_from_log_servers.look_at_health(access)
    else:
        verdict, members = look_at_health(metadata.url)
    if output != "table":
        show_facts({**verdict, "members": members}, output)
    else:
        show_facts(verdict, output)
        click.echo("")
        show_rows(("kind", "id", "state", "address"), members, output)
    click.get_current_context().exit(CODES[verdict["health"]])


@group.command(
    epilog=examples(
        "rollbook cluster restored --metadata zk://zk1,zk2,zk3/ledgers",
        "rollbook cluster restored --metadata zk://zk1/ledgers --above 71203",
        "rollbook cluster restored --metadata sqlite:///var/lib/rollbook/metadata.db --yes",
    )
)
@metadata_option(WHERE, required=True)  # Changing a cluster needs an explicit URL.
@click.option(
    "--above",
    type=WholeNumber(0),
    default=0,
    help="The highest ledger id that any bookie has. A bookie that refuses to start names it.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option
def restored(url: str, above: int, yes: bool, output: str) -> None:
    """Continue with a metadata store restored from an older copy.

    Stop all other processes of the cluster first. New ledgers get ids above all ids that were assigned since the
    copy was made, so that no id is assigned twice. Records in segments that were created since the copy was made
    are lost: the store does not name those segments, and bookies remove them after an hour or so.
    """
    from rollbook.api.cli.cluster.actions import go_on_after_restore
    from rollbook.api.cli.confirm import ask_whether

    ask_whether("give up all segments that were created since the copy was made", yes)
    show_facts(go_on_after_restore(url, above), output)


# --- Log servers ------------------------------------------------------------------------------


@group.command(
    epilog=examples(
        "rollbook cluster servers",
        "rollbook cluster servers --server log://10.0.0.5:7400 -o json",
        "rollbook cluster servers -o raw",
    )
)
@log.with_access
@list_output_option
def servers(access: "LogAccess", **how: Any) -> None:
    """List the running log servers. `-o raw` prints their ids."""
    from rollbook.api.cli.cluster.log_servers import list_servers

    list_servers(access, **how)


@group.command(
    epilog=examples(
        "rollbook cluster drain log-2 --wait",
        "rollbook cluster drain log-2 -o raw",
        "rollbook cluster drain log-2 --resume",
    )
)
@click.argument("server_id", metavar="SERVER", shell_complete=log.completed_by("names_of_servers"))
@log.with_access
@click.option(
    "--wait", is_flag=True, help="Wait until the server has no logs left, or --timeout has passed."
)
@click.option("--resume", is_flag=True, help="Let the server take logs again.")
@bare_output_option
def drain(access: "LogAccess", **how: Any) -> None:
    """Make a log server hand over its logs, and open no others. `-o raw` prints the number of logs that it still
    owns.
    """
    from rollbook.api.cli.cluster.log_servers import drain_server

    drain_server(access, **how)

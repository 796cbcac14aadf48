"""`rollbook apply`: creates and updates logs from a file. The action is in `apply_log_settings.py`."""

from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.log.commands import anyway_option, with_access
from rollbook.api.cli.output import bare_output_option, examples

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess


@click.command(
    epilog=examples(
        "rollbook apply logs.toml --dry-run",
        "rollbook apply logs.toml",
        "rollbook apply logs.toml -o json",
    )
)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@with_access
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask before retention is shortened.")
@anyway_option
@bare_output_option
def group(access: "LogAccess", **how: Any) -> None:
    """Create the logs that a file describes, or update their settings to match it.

    The output marks each log: + created, ~ changed, = unchanged. A file looks like this:

    \b
    [logs."shop/orders"]
    retention_age = "7d"
    labels = { team = "checkout" }

    \b
    times   retention_age roll_age dedupe_age delete_grace            "7d", "12h"
    bytes   retention_bytes roll_bytes tail_cache_bytes
            record_bytes_max batch_bytes_max                          "500M", 1000
    counts  copies ensemble acks roll_entries dedupe_batches batch_records_max
    others  exclusive = true, degraded_segments = false, labels, description

    The value "none" removes a retention limit. Logs and settings that are not in the file stay unchanged.
    `-o raw` prints the names of the logs that were created or changed.
    """
    from rollbook.api.cli.apply import apply_log_settings

    apply_log_settings.apply(access, **how)

"""`rollbook explain`: shows the state of a log. The action is in `log_facts.py`."""

from typing import TYPE_CHECKING, Any

import click

from rollbook.api.cli.log.commands import log_argument, with_access
from rollbook.api.cli.output import examples, output_option

if TYPE_CHECKING:
    from rollbook.api.cli.log.connection import LogAccess


@click.command(
    epilog=examples(
        "rollbook explain orders",
        "rollbook explain shop/orders -o json",
        "rollbook explain orders --server log://10.0.0.5:7400",
    )
)
@log_argument
@with_access
@output_option
def group(access: "LogAccess", **how: Any) -> None:
    """Explain the state of a log: its owner, its segments and what happens next.

    The output has the owner, the owner epoch and the writer epoch, the head and the tail, the segments, when the
    next segment begins, which records expire, which cursors prevent that, and the latest events.
    """
    from rollbook.api.cli.explain import log_facts  # `--help` is quick.

    log_facts.explain_log(access, **how)

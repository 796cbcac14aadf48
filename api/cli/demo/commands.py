"""`rollbook demo`: checks within seconds that Rollbook keeps its promises."""

import click

from rollbook.api.cli.output import examples


@click.command(
    "demo",
    epilog=examples(
        "rollbook demo", "time rollbook demo", "rollbook demo && echo 'all promises kept'"
    ),
)
def group() -> None:
    """Watch Rollbook keep its promises: real processes, real kills, everything verified.

    Three bookies and two log servers, 100,000 records appended exactly once, read as they come; a
    bookie and the owner of the log are killed; every record and every copy is looked at. It ends
    by itself, within half a minute, on free ports of this machine, and leaves nothing behind.
    """
    from rollbook.api.cli.demo.run import run_demo  # `--help` is quick.

    run_demo()

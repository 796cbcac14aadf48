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
    """Test Rollbook's promises with real processes and real kills, and verify every record.

    The demo starts three bookies and two log servers on free ports of this machine. It appends 100,000 records
    exactly once, and reads them as they arrive. It kills a bookie and the owner of the log, and checks every
    record and every copy. It ends by itself within half a minute, and deletes all its files.
    """
    from rollbook.api.cli.demo.run import run_demo  # `--help` is quick.

    run_demo()

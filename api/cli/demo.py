"""`rollbook demo`: whether it keeps its promises, within seconds."""

import click


@click.command("demo")
def group() -> None:
    """Watch Rollbook keep its promises: real processes, real kills, everything verified.

    Ends by itself in seconds, uses no port and leaves nothing behind.

    \b
    Examples:
      rollbook demo
      time rollbook demo
      rollbook demo && echo 'all promises kept'
    """
    from rollbook.api.cli.demo_run import run_demo  # `--help` is quick.

    run_demo()

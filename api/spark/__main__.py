"""Lets `python -m rollbook.api.spark export …` run the commands of `rollbook spark`, also under spark-submit."""

import sys


def run_pipeline() -> None:
    """Runs a pipeline from the command line, for example `export orders --archive DIR`."""
    from rollbook.api.cli.main import main

    sys.argv[1:1] = ["spark"]
    main()


if __name__ == "__main__":
    run_pipeline()

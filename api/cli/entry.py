"""Starts the command. Even an interrupt during the imports ends it without a traceback."""

import sys
from typing import Final

_INTERRUPTED: Final = 130


def main() -> None:
    try:
        from rollbook.api.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)

"""Runs any command as a process of `rollbook demo`, until the demo ends.

    python -m rollbook.api.cli.demo.child_main server bookie …

Its standard input is a pipe to which the demo never writes. When the demo ends or is killed, the pipe closes,
and this process ends, too.
"""

import os
import sys
import threading

from rollbook.api.cli import main as cli


def _end_with_the_demo() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demo, name="end-with-the-demo", daemon=True).start()
    cli.main()

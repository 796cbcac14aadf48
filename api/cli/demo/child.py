"""A process of `rollbook demo`: any command, until the demo is gone.

    python -m rollbook.api.cli.demo.child server bookie …

Its standard input is a pipe that is never written to. However the demo ends, the pipe ends with it,
and so does this process.
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

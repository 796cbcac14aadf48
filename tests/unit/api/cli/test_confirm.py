"""Answers to a confirmation prompt."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from select import select
from time import monotonic

import pytest

PATIENCE_S = 60
CTRL_C, CTRL_D = b"\x03", b"\x04"
AGAIN_S = 0.5
REFUSED = "error: nothing was done, since that was not meant [NOT_CONFIRMED]"
ASKED = b"Really delete it? [y/N]: "
PROGRAM = """
import signal
import sys
from rollbook.api.cli import confirm, main

def interrupt(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ignore repeated signals.
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)  # It is ignored where tests run in the background.

def ask(**_):
    confirm.ask_whether("delete it", False)
    print("deleted")

main.rollbook = ask
main.main()
"""


@pytest.mark.parametrize(
    ("typed", "code", "told"),
    [
        (b"y\n", 0, "deleted"),
        (b"n\n", 2, REFUSED),
        (b"\n", 2, REFUSED),
        (CTRL_D, 2, REFUSED),
        (CTRL_C, 130, ""),
    ],
)
def test_refusal_and_interrupt_have_different_exit_codes(
    typed: bytes, code: int, told: str
) -> None:
    """The test needs a pseudo-terminal, because the prompt is shown only on a terminal."""
    ours, theirs = pty.openpty()
    give_up_at = monotonic() + PATIENCE_S
    with os.fdopen(ours, "r+b", buffering=0) as terminal:
        with os.fdopen(theirs, "r+b", buffering=0) as side:
            process = subprocess.Popen(
                # The terminal controls the session, so that ^C is a signal.
                ["setsid", "--ctty", sys.executable, "-c", PROGRAM],
                stdin=side,
                stdout=side,
                stderr=side,
            )
        try:
            heard = b""
            while not heard.endswith(ASKED):
                heard += terminal.read(1)
            terminal.write(typed)
            with suppress(OSError):  # EIO: the other side is closed.
                while monotonic() < give_up_at:
                    if typed == CTRL_C and not select([terminal], [], [], AGAIN_S)[0]:
                        terminal.write(typed)  # Python misses signals just before it waits.
                        continue
                    heard += terminal.read(1 << 12)
            assert process.wait(PATIENCE_S) == code
        finally:
            process.kill()
            process.wait()
    answer = heard.partition(ASKED)[2].decode()
    assert told in answer
    assert ("deleted" in answer) == (code == 0)
    assert ("error" in answer) == (code == 2)

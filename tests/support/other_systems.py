"""Runs `rollbook WORDS…` without what Python lacks on another system.

Run as `python -m tests.support.other_systems SYSTEM WORDS…`. Only the missing names of Python are
emulated, not the behaviour of the system.
"""

import fcntl
import os
import socket
import sys
from typing import Final

_LINUX_ONLY: Final = (
    "O_DIRECT",
    "RWF_NOWAIT",
    "fdatasync",
    "posix_fadvise",
    "posix_fallocate",
    "POSIX_FADV_DONTNEED",
    "POSIX_FADV_RANDOM",
    "POSIX_FADV_WILLNEED",
)
_OPTIONS_OF_LINUX: Final = ("TCP_KEEPIDLE", "TCP_NOTSENT_LOWAT")
_POSIX_ONLY: Final = (
    "O_DIRECTORY",
    "fchmod",
    "fork",
    "getloadavg",
    "getuid",
    "geteuid",
    "preadv",
    "pwritev",
    "pread",
    "pwrite",
    "register_at_fork",
    "sysconf",
)
_POSIX_MODULES: Final = ("fcntl", "grp", "pwd", "resource")


def become(system: str) -> None:
    assert system in ("macos", "windows")
    for name in (*_LINUX_ONLY, *(_POSIX_ONLY if system == "windows" else ())):
        if hasattr(os, name):
            delattr(os, name)
    for name in _OPTIONS_OF_LINUX:
        if hasattr(socket, name):
            delattr(socket, name)
    for name in ("F_OFD_SETLK", "F_SETPIPE_SZ"):
        if hasattr(fcntl, name):
            delattr(fcntl, name)
    if system == "windows":
        for name in _POSIX_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]  # Makes its import fail.


def main() -> None:
    become(sys.argv[1])
    del sys.argv[1]
    if sys.argv[1] == "client":
        import rollbook

        with rollbook.connect(sys.argv[2]) as client:
            log = client.open("from-windows", create=True)
            log.append(b"a record")
            print([record.value for record in log.read()])
        return
    from rollbook.api.cli.main import main as run

    run()


if __name__ == "__main__":
    main()

"""While a world runs, the machine is out of reach.

Product code that looks at a clock, asks for chance, starts a thread or touches a socket or a file
makes a run depend on more than its seed. It is stopped where it happens, and the run fails even if
somebody swallows the exception. What was imported by name before (`from time import monotonic`)
cannot be caught here; `banned.py` finds that in the source.

A few modules of Python's own may go on: they read source lines for tracebacks and the like.
"""

import builtins
import io
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.simulation.kernel.failures import ForbiddenCall

_FORBIDDEN: Final[tuple[tuple[Any, str], ...]] = (
    (time, "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns sleep"),
    (random, "betavariate choice choices expovariate gauss getrandbits lognormvariate"),
    (random, "normalvariate paretovariate randbytes randint random randrange sample seed setstate"),
    (random, "shuffle triangular uniform vonmisesvariate weibullvariate _urandom"),
    (
        os,
        "urandom getrandom open fsync fdatasync listdir scandir mkdir makedirs link rename replace",
    ),
    (os, "unlink remove rmdir truncate fork posix_fallocate kill"),
    (uuid, "uuid1 uuid4"),
    (secrets, "token_bytes token_hex token_urlsafe randbelow choice randbits"),
    (threading.Thread, "start"),
    (socket.socket, "__init__"),
    (socket, "getaddrinfo gethostbyname gethostname"),
    (subprocess.Popen, "__init__"),
    (builtins, "open"),
    (io, "open"),
)
_MAY: Final = frozenset(
    ("importlib", "inspect", "linecache", "logging", "pdb", "bdb", "cmd", "tokenize", "traceback")
)


class _Guard:
    """Stands in for all that is forbidden."""

    def __init__(self) -> None:
        self.tell: Callable[[BaseException], None] | None = None
        self._places: list[tuple[Any, str, Any, Any]] = []
        for owner, names in _FORBIDDEN:
            for name in names.split():
                original = getattr(owner, name, None)
                if original is not None:  # Not every system has all of them.
                    what = f"{owner.__name__}.{name}"
                    self._places.append((owner, name, original, self._refusal(original, what)))

    def _refusal(self, original: Callable[..., Any], what: str) -> Callable[..., Any]:
        def refuse(*arguments: Any, **keywords: Any) -> Any:
            caller = sys._getframe(1)
            module = str(caller.f_globals.get("__name__", "?"))
            if module.partition(".")[0] in _MAY or self.tell is None:
                return original(*arguments, **keywords)
            failure = ForbiddenCall(f"{what} called in {module}, line {caller.f_lineno}")
            self.tell(failure)
            raise failure

        return refuse

    def arm(self) -> None:
        for owner, name, _, refusal in self._places:
            setattr(owner, name, refusal)

    def disarm(self) -> None:
        for owner, name, original, _ in self._places:
            setattr(owner, name, original)


_GUARD: Final = _Guard()


@contextmanager
def guarded(tell: Callable[[BaseException], None]) -> Iterator[None]:
    """`tell` hears of each attempt, before the one who made it."""
    assert _GUARD.tell is None, "one world at a time"
    _GUARD.tell = tell
    _GUARD.arm()
    try:
        yield
    finally:
        _GUARD.disarm()
        _GUARD.tell = None

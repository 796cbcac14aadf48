"""Time, CPU and memory of commands and of `import rollbook`, from start to exit.

Each command is a separate process. Connected commands use an idle cluster of `rollbook dev` on this
machine. Wall time is meaningful only on a quiet machine.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from tests.bench import Figure, judged
from tests.regressions import one_dev

_MIB: Final = 1 << 20
_KIB: Final = 1 << 10
_START_S: Final = 0.2  # Of a `--help`, and of a connected command: wall and CPU.
_REFUSED_S: Final = 0.3
_IMPORT_S: Final = 0.15
_DEV_MIB: Final = 200.0
_SETTLED_S: Final = 2.0  # After its start, until `dev` is measured.
_IMPORT: Final = """
import time
began = time.perf_counter()
import rollbook
print(time.perf_counter() - began)
"""

# What no command over gRPC can be quicker than.
_ONE_CALL: Final = """
import asyncio, sys
import grpc.aio
async def call():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
asyncio.run(call())
"""


class Spent(NamedTuple):
    """Resources used by one process without its children."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    said: str
    code: int


def spent(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Spent:
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Spent(wall_s, cpu_s, usage.ru_maxrss * _KIB / _MIB, said, process.returncode)


def figures(runs: int) -> Iterator[Figure]:
    """Measures with cached bytecode, as after pip, even if the environment disables writing it."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bytecode-") as folder:
        cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        with mock.patch.dict(os.environ, cached):
            yield from _figures(runs)


def _figures(runs: int) -> Iterator[Figure]:
    python = [sys.executable]
    bare = [spent([*python, "-c", "pass"]) for _ in range(runs)]
    yield judged("python alone, wall", "s", None, [each.wall_s for each in bare])
    spent([*python, "-c", f"{_IMPORT}rollbook.connect"])  # Writes the bytecode.
    imports = [spent([*python, "-c", _IMPORT]) for _ in range(runs)]
    yield judged("import rollbook", "s", _IMPORT_S, [float(each.said) for each in imports])
    client = [spent([*python, "-c", f"{_IMPORT}rollbook.connect"]) for _ in range(runs)]
    yield judged("import rollbook and its client, CPU", "s", None, [each.cpu_s for each in client])
    yield judged("import rollbook and its client, peak", "MiB", None, [e.peak_mib for e in client])
    shell = [*python, "-c", "import sys; from rollbook.api.cli.entry import main; sys.exit(main())"]
    for words in ("--help", "log --help", "log append --help"):
        yield from _both(words, runs, lambda words=words: spent([*shell, *words.split()]))  # type: ignore[misc]  # A default in a lambda.
    refused = ("log", "ls", "--server", f"127.0.0.1:{_closed_port()}")
    yield from _both(
        "log ls, refused", runs, lambda: spent([*shell, *refused]), target_s=_REFUSED_S, code=5
    )
    with (
        tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder,
        one_dev.running(Path(folder)) as dev,
    ):
        time.sleep(_SETTLED_S)
        yield judged("dev after start, resident", "MiB", _DEV_MIB, [_resident_mib(dev.child.pid)])
        environment = {"ROLLBOOK_SERVER": dev.url}
        one_call = [*python, "-c", _ONE_CALL, dev.url.removeprefix("log://")]
        yield from _both("gRPC alone, one call", runs, lambda: spent(one_call), target_s=None)
        for words in (
            "log create bench -o raw",
            "log append bench hello",
            "log read bench",
            "log ls",
            "log show bench",
            "cluster info",
        ):
            command = [*shell, *words.split()]
            yield from _both(words, runs, lambda command=command: spent(command, environment))  # type: ignore[misc]  # A default in a lambda.


def _both(
    what: str,
    runs: int,
    run: Callable[[], Spent],
    *,
    target_s: float | None = _START_S,
    code: int = 0,
) -> Iterator[Figure]:
    run()  # Writes the bytecode.
    found = [run() for _ in range(runs)]
    wrong = [each.code for each in found if each.code != code]
    assert not wrong, f"{what}: ended with {wrong}, expected {code}"
    yield judged(f"{what}, wall", "s", target_s, [each.wall_s for each in found])
    yield judged(f"{what}, CPU", "s", target_s, [each.cpu_s for each in found])


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB

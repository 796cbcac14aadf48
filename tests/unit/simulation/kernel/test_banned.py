"""The lint finds what would make a run depend on more than its seed, and accepts everything else."""

from pathlib import Path

import pytest

from tests.simulation.kernel.banned import banned_calls, banned_in

SHELL, CORE = "bookie/journal.py", "bookie/core/fencing.py"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time", "import time"),
        ("from time import monotonic as now", "from time import monotonic"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import os\nos.remove('x')", "os.remove"),
        ("from os import open", "os.open"),
        ("import random\nrandom.random()", "random.random"),
        ("from random import choice", "random.choice"),
        ("import uuid", "import uuid"),
        ("import threading", "import threading"),
        ("from concurrent.futures import ThreadPoolExecutor", "from concurrent.futures"),
        ("import socket", "import socket"),
        ("open('x')", "open()"),
        ("import asyncio\nasyncio.TaskGroup()", "asyncio.TaskGroup"),
        ("from asyncio import TaskGroup", "asyncio.TaskGroup"),
        ("import asyncio as a\nawait_ = a.wait", "asyncio.wait"),
        ("import asyncio\nasyncio.as_completed([])", "asyncio.as_completed"),
        ("import asyncio\nasyncio.to_thread(f)", "asyncio.to_thread"),
        ("loop.run_in_executor(None, f)", ".run_in_executor"),
        ("loop.call_soon_threadsafe(f)", ".call_soon_threadsafe"),
        ("from weakref import WeakSet", "weakref.WeakSet"),
        ("import weakref\nx = weakref.WeakSet()", "weakref.WeakSet"),
        ("import datetime as d\nd.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("hash(x)", "hash()"),
        ("x.sort(key=id)", "key=id"),
        ("sorted(x, key=hash)", "key=hash"),
        ("a = id(x) < id(y)", "id()"),
        ("for x in {1, 2}: f(x)", "iteration over a set"),
        ("for x in set(y): f(x)", "iteration over a set"),
        ("seen = set()\nfor x in seen: f(x)", "iteration over a set"),
        ("seen: set[int] = y\n[f(x) for x in seen]", "iteration over a set"),
        ("def f(seen: set[int]):\n    return [x for x in seen]", "iteration over a set"),
        (
            "class A:\n  def f(self): self.seen = set()\n  def g(self): list(self.seen)",
            "list() of a",
        ),
        ("seen = {x for x in y}\nf(*seen)", "a set unpacked"),
        ("seen = set()\nseen.pop()", "pop() of a set"),
        ("seen = frozenset(y)\nd = {x: 1 for x in seen}", "iteration over a set"),
        ("seen = set()\nx = next(iter(seen))", "iter() of a set"),
    ],
)
def test_banned_code_is_found(source: str, what: str) -> None:
    found = banned_in(source, SHELL)
    assert len(found) == 1, found
    line = len(source.split("\n"))
    assert found[0].startswith(f"{SHELL}:{line}: {what}")


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.timeout(1)\nasyncio.gather(*tasks)",
        "import random\ndef f(chance: random.Random): return chance.choice([1])",
        "from random import Random\nRandom(1)",
        "import os\nos.path.join('a', 'b')\nos.strerror(5)",
        "known[id(x)] = y\nz = known[id(x)]",
        "seen = set()\nfor x in sorted(seen): f(x)\nlen(seen)\n1 in seen\nseen.discard(2)",
        "seen = set()\nany(x > 1 for x in seen)\nmax(seen)",
        "seen = {}\nfor x in seen: f(x)\nseen.pop(1)",
        "from rollbook.proto.tasks import TaskGroup\nTaskGroup()",
        "file.open('x')\nself.hash(x)",
        "from datetime import datetime\ndatetime.fromtimestamp(1)",
    ],
)
def test_allowed_code_is_accepted(source: str) -> None:
    assert banned_in(source, SHELL) == []


@pytest.mark.parametrize("module", ["asyncio", "os", "structlog", "logging"])
def test_cores_may_not_import_asyncio_os_or_logging(module: str) -> None:
    assert len(banned_in(f"import {module}", CORE)) == 1
    assert banned_in(f"import {module}", SHELL) == []


def test_runtime_package_is_exempt(tmp_path: Path) -> None:
    for folder, found in (("bookie", 1), ("proto/runtime", 0)):
        path = tmp_path / folder / "disk.py"
        path.parent.mkdir(parents=True)
        path.write_text("import threading")
        assert len(banned_calls(str(path))) == found

"""The limit of Python for adds: three bookies and a client that do the minimum
(`load/bare_bookie.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.bookies import cpu_s
from tests.support.processes import Child, Family, family

BOOKIES = 3


class BareBookie:
    def __init__(self, children: Family, path: Path) -> None:
        self.path = path
        self.life = children.start_module("tests.bench.load.bare_bookie", path)
        self.port = int(self.life.line())

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.life.pid)


class BareCluster:
    def __init__(self, folder: Path, children: Family) -> None:
        self.children = children
        self.bookies = [BareBookie(children, folder / str(number)) for number in range(BOOKIES)]

    def start_client(self) -> Child:
        ports = [str(bookie.port) for bookie in self.bookies]
        return self.children.start_module("tests.bench.load.bare_worker", *ports)


@contextmanager
def running(folder: Path) -> Iterator[BareCluster]:
    folder.mkdir()
    with family() as children:
        yield BareCluster(folder, children)

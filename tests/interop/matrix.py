"""The tests of a run as a table: which client wrote and which read, on which bookies, and the subject.

All of that follows from a test's name, file and parameters. A cell has the number of tests that passed
or, if any failed or could not start, the number of those.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

_WRITERS: Final = (  # The first pattern found in a test's node id counts.
    (r"we_wrote|our_writer|java_looks|we_delete", "we, Java reads"),
    (r"java_wrote|java_writer", "Java, we read"),
    (r"our_client|conversations|page", "both"),
    (r"", "Java alone"),
)
_SUBJECTS: Final = (
    (r"conversations", "replies"),
    (r"autorecovery", "autorecovery"),
    (r"shell\.py|page\.py|http\.py|bookkeeper_shell|administrators|tell_of_their_disks", "tools"),
    (r"dies|died|killed|dead|lost|stop|away|comes_back|read_only", "bookie away"),
    (r"fence|recover", "recovery"),
    (r"follow|poll|lac\b|_lac_", "following"),
    (r"delete", "deletion"),
    (r"3/2/2", "striping"),
    (r"CRC|MAC|DUMMY", "digests"),
    (r"", "the rest"),
)
_PLACES: Final = (
    (r"\[cluster|\[.*-cluster", "ours"),
    (r"\[mixed|mixed\.py|http\.py|conversations\.py", "mixed"),
    (r"\[javas|page\.py|java_bookie|_on_javas", "Java's"),
    (r"", "ours"),
)
_NOTHING: Final = "-"


def _first(rules: tuple[tuple[str, str], ...], nodeid: str) -> str:
    return next(name for pattern, name in rules if re.search(pattern, nodeid))


def _names(rules: tuple[tuple[str, str], ...]) -> list[str]:
    return list(dict.fromkeys(name for _, name in rules))


class Matrix:
    """A pytest plugin that counts results."""

    def __init__(self, bookies: str) -> None:
        """`bookies`: the make of the bookies that tests have by default."""
        self._places = _PLACES if bookies == "rollbook" else (*_PLACES[1:-1], ("", "Java's"))
        self._passed: Counter[tuple[str, str, str]] = Counter()
        self._failed: Counter[tuple[str, str, str]] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid
        cell = (_first(_WRITERS, name), _first(self._places, name), _first(_SUBJECTS, name))
        if report.failed:
            self._failed[cell] += 1
        elif report.passed and report.when == "call":
            self._passed[cell] += 1

    def lines(self) -> Iterator[str]:
        cells = self._passed + self._failed
        subjects = [each for each in _names(_SUBJECTS) if any(each == cell[2] for cell in cells)]
        if not subjects:
            return
        yield f"{'who writes':<16}{'bookies':<9}" + "".join(f"{each:>13}" for each in subjects)
        for writer in _names(_WRITERS):
            for place in _names(self._places):
                row = [(writer, place, subject) for subject in subjects]
                if any(cell in cells for cell in row):
                    shown = "".join(f"{self._shown(cell):>13}" for cell in row)
                    yield f"{writer:<16}{place:<9}{shown}"

    def _shown(self, cell: tuple[str, str, str]) -> str:
        if self._failed[cell]:
            return f"{self._failed[cell]} FAILED"
        return str(self._passed[cell] or _NOTHING)

"""The words that users meet, one file per door: `cli.txt`, `rest.txt` and `grpc.txt`; `python.txt` has errors as raised.

Other tests look at reasons, exit codes, fields and outcomes. The sentences are compared here, so that a change of
words is one command, `python -m tests messages --write`, and a diff to read.
"""

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from rollbook.proto.errors import RollbookError

E = TypeVar("E", bound=RollbookError)

# Set to 1, it replaces the sections that were compared; set to "all", it drops the others, too.
_WRITES: Final = os.environ.get("ROLLBOOK_WRITE_MESSAGES", "")
_FOLDER: Final = Path(__file__).parent
_TITLE: Final = "## "
_PLACES: Final = (
    (re.compile(r"(?<![\w:/])/(tmp|dev/shm|var|root)/[^\s'\",;:]*"), "PATH"),
    (re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+"), "HOST:PORT"),
)
_raised: dict[str, int] = {}  # How many messages a test has had, in this process.


class Messages:
    """The file of one door: sections with a title, sorted. It is read when this module is loaded, since simulated
    tests open no real file, and written when the process ends.
    """

    def __init__(self, door: str) -> None:
        self._path = _FOLDER / f"{door}.txt"
        self._sections = self._read()
        self._new: dict[str, str] = {}

    def check(self, title: str, text: str) -> None:
        """Compares a section with the file, or replaces it there."""
        text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        if _WRITES:
            self._new[title] = text
            return
        assert self._sections.get(title) == text, (
            f"{self._path.name} has other words for {title!r}; "
            "python -m tests messages --write keeps the new ones"
        )

    def check_titles(self, prefix: str, titles: list[str]) -> None:
        """Every section whose title starts so belongs to one of `titles`; the writer drops the others."""
        stale = [name for name in self._sections if name.startswith(prefix) and name not in titles]
        assert _WRITES or not stale, "python -m tests messages --write drops them"

    def write(self, *, drops_others: bool) -> None:
        kept = self._new if drops_others else self._sections | self._new
        parts = [f"{_TITLE}{title}\n\n{text}\n" for title, text in sorted(kept.items())]
        self._path.write_text("\n".join(parts))

    def _read(self) -> dict[str, str]:
        sections: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            if line.startswith(_TITLE):
                lines = sections.setdefault(line.removeprefix(_TITLE), [])
            else:
                lines.append(line)
        return {title: "\n".join(lines).strip("\n") for title, lines in sections.items()}


CLI: Final = Messages("cli")
REST: Final = Messages("rest")
GRPC: Final = Messages("grpc")
PYTHON: Final = Messages("python")


def _write_all() -> None:
    for door in (CLI, REST, GRPC, PYTHON):
        door.write(drops_others=_WRITES == "all")


if _WRITES:
    atexit.register(_write_all)


@contextmanager
def raises_message(kind: type[E]) -> Iterator[pytest.ExceptionInfo[E]]:
    """Like `pytest.raises`, and the message and the next step are those that `python.txt` has for this test."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
    _raised[test] = _raised.get(test, 0) + 1
    title = test if _raised[test] == 1 else f"{test} ({_raised[test]})"
    text = f"{type(error).__name__}: {error.message}"
    if error.next_step:
        text += f"\n  try: {error.next_step}"
    for pattern, name in _PLACES:
        text = pattern.sub(name, text)
    PYTHON.check(title, text)

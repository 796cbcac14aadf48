"""The words that users meet, one file per door: `cli.txt`, `rest.txt` and `grpc.txt`.

Other tests look at reasons, exit codes, fields and outcomes. The sentences are compared here, so that a change of
words is one command, `python -m tests messages --write`, and a diff to read.
"""

import os
from pathlib import Path
from typing import Final

WRITE_VARIABLE: Final = "ROLLBOOK_WRITE_MESSAGES"
_FOLDER: Final = Path(__file__).parent
_TITLE: Final = "## "


class Messages:
    """The file of one door: sections with a title, sorted."""

    def __init__(self, door: str) -> None:
        self._path = _FOLDER / f"{door}.txt"

    def check(self, title: str, text: str) -> None:
        """Compares a section with the file, or writes it if `WRITE_VARIABLE` is set."""
        kept = self._read()
        text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        if os.environ.get(WRITE_VARIABLE):
            self._write(kept | {title: text})
            return
        assert kept.get(title) == text, (
            f"{self._path.name} has other words for {title!r}; "
            "python -m tests messages --write keeps the new ones"
        )

    def check_titles(self, prefix: str, titles: list[str]) -> None:
        """Every section whose title starts so belongs to one of `titles`; the writer drops the others."""
        kept = self._read()
        stale = [title for title in kept if title.startswith(prefix) and title not in titles]
        if os.environ.get(WRITE_VARIABLE):
            self._write({title: text for title, text in kept.items() if title not in stale})
            return
        assert not stale, "python -m tests messages --write drops them"

    def _read(self) -> dict[str, str]:
        sections: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            if line.startswith(_TITLE):
                lines = sections.setdefault(line.removeprefix(_TITLE), [])
            else:
                lines.append(line)
        return {title: "\n".join(lines).strip("\n") for title, lines in sections.items()}

    def _write(self, sections: dict[str, str]) -> None:
        parts = [f"{_TITLE}{title}\n\n{text}\n" for title, text in sorted(sections.items())]
        self._path.write_text("\n".join(parts))

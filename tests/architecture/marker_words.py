"""Counts the words that nearly always mark a sentence to rewrite, per package.

`python -m tests.architecture.marker_words` prints the counts; `--write` records them as the new limit.
"""

import io
import json
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

from tests.architecture.source import PACKAGES, ROOT

WORDS: Final = re.compile(
    r"\b(whoever|so many|so much|told|anew|for good|likewise|another's|he|him|his)\b", re.IGNORECASE
)
LIMITS: Final = Path(__file__).with_suffix(".json")
_CODE: Final = (*PACKAGES, "tests", "examples")
_PROSE: Final = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
_BUILT: Final = {"node_modules", "target"}
# These files list the words.
_EXEMPT: Final = (Path(__file__), Path(__file__).with_name("test_marker_words.py"))


def counts() -> dict[str, int]:
    """Marker words in comments, docstrings, strings and pages, by top-level folder."""
    found: Counter[str] = Counter()
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.name.endswith(("_pb2.py", "_pb2.pyi")) or path in _EXEMPT:
                continue
            if not _BUILT.isdisjoint(path.parts):
                continue
            found[folder] += len(WORDS.findall(prose_of(path)))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "compose").rglob("*.md")]
    found["pages"] = sum(len(WORDS.findall(path.read_text())) for path in pages)
    return dict(sorted(found.items()))


def prose_of(path: Path) -> str:
    """The prose of a file: comments and strings of Python, and all of a page or schema."""
    if path.suffix in (".md", ".proto"):
        return path.read_text()
    if path.suffix != ".py":
        return ""
    text = path.read_text()
    if not WORDS.search(text):
        return ""  # Most files end here: tokenizing is the slow part.
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in _PROSE)


if __name__ == "__main__":
    text = json.dumps(counts(), indent=2) + "\n"
    if "--write" in sys.argv:
        LIMITS.write_text(text)
    print(text, end="")

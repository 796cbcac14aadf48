"""Words that mark a sentence to rewrite may only become fewer, package by package."""

import json
from pathlib import Path

from tests.architecture.marker_words import LIMITS, WORDS, counts, prose_of


def test_marker_words_only_become_fewer() -> None:
    limits = json.loads(LIMITS.read_text())
    over = {name: (count, limits.get(name, 0)) for name, count in counts().items()}
    over = {name: pair for name, pair in over.items() if pair[0] > pair[1]}
    assert not over, f"rewrite the sentences that the change adds (package: count, limit): {over}"


def test_marker_words_are_counted_in_prose_only(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Whoever reads."""\ntold = 1  # told so\nx = f"{told} for good"\n')
    found = [word.lower() for word in WORDS.findall(prose_of(module))]
    assert found == ["whoever", "told", "for good"] or found == [
        "whoever",
        "told",
        "told",
        "for good",
    ]
    page = tmp_path / "page.md"
    page.write_text("The shell, he, the other: this.\n")
    assert WORDS.findall(prose_of(page)) == ["he"]

"""Suggests the known word that an unknown one may be a misspelling of."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

SHOWN: Final = 80  # Characters of an unknown word that an error repeats.


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The next step; `otherwise` if none is near."""
    close = get_close_matches(word[:SHOWN], sorted(known), 1)
    return f"did you mean {close[0]}?" if close else otherwise

"""Errors as a page shows them: a title, a sentence, and the next step."""

from collections.abc import Sequence

from rollbook.api.access.authenticator import CALLER
from rollbook.api.dashboard.core.markup import element
from rollbook.api.dashboard.parts import Screen
from rollbook.proto.errors import OutcomeUnknown, RollbookError, Unauthorized, Unavailable


def problem_screen(title: str, text: str, next_step: str) -> Screen:
    return Screen(title, [element("p", text), element("p", next_step) if next_step else None])


def error_title(error: RollbookError) -> str:
    if isinstance(error, Unavailable | OutcomeUnknown):
        return "Nothing is known yet"
    return "Not allowed" if isinstance(error, Unauthorized) else "That cannot be shown"


def error_text(error: RollbookError, *names: str) -> str:
    """`names`: more names that keep a lowercase first letter, like the ids in the error and the caller's name."""
    text = error.message or (type(error).__doc__ or "").partition("\n")[0]
    caller = CALLER.get(None)
    known = (*names, *map(str, error.ids.values()), caller.principal.name if caller else "")
    return sentence(text, known)


def sentence(text: str, names: Sequence[str] = ()) -> str:
    """Adds a full stop, and a capital letter unless the text begins with an id or a name."""
    first = text.partition(" ")[0].rstrip(",:;.")
    if first.isalpha() and first not in names:
        text = f"{text[:1].upper()}{text[1:]}"
    return f"{text}." if text and text[-1] not in ".!?\u2026" else text

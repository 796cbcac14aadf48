"""Reports a command's failure: what happened, what took effect and what to do (SH1).

An error is printed on stderr, as lines for people. With `-o json` or `-o ndjson` it is printed as one line of JSON,
so that the program that parses the output can also parse the error.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import click

from rollbook.proto.errors import Outcome, RollbookError
from rollbook.proto.printable import harmless

_NONE: Final[Mapping[str, Any]] = {}
_FOR_PROGRAMS: Final = ("json", "ndjson")
_OUTCOMES: Final = {
    Outcome.APPLIED: "applied: it was done",
    Outcome.NOT_APPLIED: "not applied: nothing was changed",
    Outcome.UNKNOWN: "unknown: it may have been done",
}
_COUNTS: Final = ("acknowledged", "in_doubt", "not_appended", "next_offset")
# Further facts in the message about an import that ended early.
_PARTS: Final = ("created", "appended")


def explain_error(error: RollbookError) -> None:
    explain(
        error.message or (error.__doc__ or "").partition("\n")[0],
        error.code.reason,
        error.outcome,
        error.next_step,
        is_retryable=error.retryable,
        ids=error.ids,
    )


def explain(
    what: str,
    reason: str,
    outcome: Outcome,
    next_step: str = "",
    *,
    is_retryable: bool = False,
    ids: Mapping[str, Any] = _NONE,
) -> None:
    if _is_for_programs(sys.argv[1:]):
        problem = {
            "reason": reason,
            "detail": what,
            "outcome": outcome.value,
            "retryable": is_retryable,
            "next_step": next_step,
            "ids": dict(ids),
        }
        click.echo(json.dumps({"error": problem}, default=str), err=True)
        return
    took_effect = _OUTCOMES[outcome]
    if "acknowledged" in ids:
        took_effect = _counts_in(ids)
    elif "appended" in ids:
        took_effect = _parts_in(ids)
    where = " ".join(
        f"{name}={value}" for name, value in ids.items() if name not in _COUNTS + _PARTS
    )
    named = f" [{reason}]" if reason else ""
    lines = [f"error: {what}{f' ({where})' if where else ''}{named}", f"  outcome: {took_effect}"]
    if next_step:
        lines.append(f"  try: {next_step}")
    click.echo(harmless("\n".join(lines), keeps="\n"), err=True)


def _is_for_programs(words: Sequence[str]) -> bool:
    """Returns whether the user requested JSON. It reads the words of the command line, because click's options
    are unknown if the command could not be parsed.
    """
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in ("-o", "--output") and (value if equals else following) in _FOR_PROGRAMS:
            return True
        if word.removeprefix("-o") in _FOR_PROGRAMS and word.startswith("-o"):
            return True
    return False


def _counts_in(ids: Mapping[str, Any]) -> str:
    """Describes the counts of an append that ended early; its records were sent in order."""
    acknowledged, in_doubt, refused, next_offset = (ids[name] for name in _COUNTS)
    found = f"{acknowledged} records are acknowledged"
    if next_offset is not None:
        found += f", below offset {next_offset}"
    if in_doubt:
        found += f"; the next {in_doubt} may have been appended"
    return f"{found}; {refused} were not appended" if refused else found


def _parts_in(ids: Mapping[str, Any]) -> str:
    """Describes the counts of an import that ended early."""
    done = ["the log was created"] if ids["created"] else []
    if ids["appended"]:
        done.append(f"{ids['appended']:,} records were appended, below offset {ids['next_offset']}")
    if ids["in_doubt"]:
        done.append(f"the next {ids['in_doubt']:,} may have been appended")
    return f"applied in part: {'; '.join(done)}"

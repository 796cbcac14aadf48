"""Reports the worst problem of a cluster in one sentence, with a link."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sentence:
    level: str  # good, warning or bad.
    text: str
    link: str  # The path, below the dashboard, of the screen that shows the details.


def sentence_of(health: Facts, recovery: Facts) -> Sentence:
    """`health`: the facts of `rollbook cluster health`. `recovery`: the facts of `rollbook recovery status`."""
    for rule in _RULES:
        if (found := rule(health, recovery)) is not None:
            return found
    return Sentence("good", f"Everything works; bookies: {health['bookies']}.", "/bookies")


def _lost(_: Facts, recovery: Facts) -> Sentence | None:
    count = recovery["ledgers_unrecoverable"]
    if not count:
        return None
    return Sentence("bad", f"{_ledgers(count)} entries without a copy.", "/ledgers/bad")


def _unavailable(health: Facts, _: Facts) -> Sentence | None:
    if health["health"] != "unavailable":
        return None
    text = f"New logs {health['new_logs']}; log servers: {health['log_servers']}."
    return Sentence("bad", text, "/bookies")


def _missing(health: Facts, _: Facts) -> Sentence | None:
    away = _named(health, _GOOD)
    return Sentence("warning", f"{away}.", "/bookies") if away else None


def _named(health: Facts, good: Sequence[str]) -> str:
    """Names the members with a state that is not in `good`. Returns an empty text if there are none."""
    found = [
        f"{each['kind']} {each['id']} is {each['state']}"
        for each in health["members"]
        if each["state"] not in good
    ]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    text = ", ".join(found[:_NAMED])
    return f"{text[:1].upper()}{text[1:]}{more}"


def _short(_: Facts, recovery: Facts) -> Sentence | None:
    count = recovery["ledgers_marked"]
    if not count:
        return None
    return Sentence(
        "warning", f"{_ledgers(count)} fewer copies than required.", "/ledgers?short=true"
    )


def _paused(_: Facts, recovery: Facts) -> Sentence | None:
    if recovery["autorecovery"] == "enabled":
        return None
    return Sentence("warning", "Repair is paused: lost copies are not replaced.", "/recovery")


def _no_auditor(_: Facts, recovery: Facts) -> Sentence | None:
    if recovery["auditor"]:
        return None
    return Sentence(
        "warning", "No recovery server is the auditor: lost bookies go unnoticed.", "/recovery"
    )


def _degraded(health: Facts, _: Facts) -> Sentence | None:
    if health["lost_segments"]:
        text = f"Logs lack {health['lost_segments']} segments, because their ledgers were deleted."
        return Sentence("bad", text, "/ledgers")
    if health["unopened_logs"]:
        text = f"{health['unopened_logs']} logs cannot be opened: `rollbook explain LOG` says why."
        return Sentence("bad", text, "/servers")
    if health["degraded_logs"]:
        text = f"{health['degraded_logs']} logs are written with fewer copies than configured."
        return Sentence("warning", text, "/bookies")
    if health["health"] == "degraded":
        text = _named(health, ("writable", "serving")) or f"New logs {health['new_logs']}"
        return Sentence("warning", f"{text}.", "/bookies")
    return None


def _leaving(_: Facts, recovery: Facts) -> Sentence | None:
    if not recovery["bookies_leaving"]:
        return None
    return Sentence("good", f"Bookies that leave: {recovery['bookies_leaving']}.", "/bookies")


def _ledgers(count: int | str) -> str:
    return "1 ledger has" if count == 1 else f"{count} ledgers have"


_NAMED: Final = 3
_GOOD: Final = ("writable", "serving", "draining", "read-only")
_RULES: Final[tuple[Callable[[Facts, Facts], Sentence | None], ...]] = (
    _lost,
    _unavailable,
    _missing,
    _short,
    _paused,
    _no_auditor,
    _degraded,
    _leaving,
)

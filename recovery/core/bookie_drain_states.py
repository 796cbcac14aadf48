"""The possible changes of a bookie's state, and who decides them.

                    drain (person)                finish (steward)
       Active ─────────────────────► Draining ─────────────────────► Drained
         ▲                            │     ▲                         │  ▲
         │ cancel (person)            │     │ retry (person)          │  │ mark_drained (person)
         ├────────────────────────────┤     │                         │  │
         │                  fail      │     └──── revert (steward) ───┘  │
         │                 (steward)  ▼                                  │
         └────────────────────── DrainingFailed ─────────────────────────┘

A bookie that is not Active is read-only. Only an Active bookie begins to drain; DrainingFailed changes only
by hand (LC1). Each write names the version that was read, and carries a new token that the writer drew. The
steward's changes also name its vote, so an old steward changes nothing (LC2).
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from rollbook.proto.errors import LifecycleConflict
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata

_ACTIVE, _DRAINING = LifecycleState.ACTIVE, LifecycleState.DRAINING
_DRAINED, _FAILED = LifecycleState.DRAINED, LifecycleState.DRAINING_FAILED
REASON_CHARS_MAX: Final = 500


# --- Changes by a person ---------------------------------------------------------------------


def drain(
    found: Lifecycle, token: str, now_ms: int, *, ledgers: int, is_forced: bool = False
) -> Lifecycle:
    """Begin a drain. `ledgers` is the number of ledgers that name the bookie now; it is used to show
    progress. Raises `LifecycleConflict`.
    """
    _require(found, "drain", _ACTIVE)
    return Lifecycle(_DRAINING, token, now_ms, ledgers, is_forced)


def retry(found: Lifecycle, token: str, now_ms: int, *, ledgers: int) -> Lifecycle:
    """Retry a failed drain. Raises `LifecycleConflict`."""
    _require(found, "retry the drain of", _FAILED)
    return Lifecycle(_DRAINING, token, now_ms, ledgers, found.is_forced)


def cancel(found: Lifecycle, token: str, now_ms: int) -> Lifecycle:
    """End a drain: the bookie is Active again, and copies that were made are kept. Raises
    `LifecycleConflict`.
    """
    _require(found, "undrain", _DRAINING, _DRAINED, _FAILED)
    return Lifecycle(_ACTIVE, token, now_ms)


def mark_drained(found: Lifecycle, token: str, now_ms: int) -> Lifecycle:
    """End a failed drain: a person has repaired or given up what could not be copied. Raises
    `LifecycleConflict`.
    """
    _require(found, "mark as drained", _FAILED)
    return _next(found, _DRAINED, token, now_ms, found.reason)


# --- Changes by the steward ------------------------------------------------------------------


def finish(found: Lifecycle, token: str, now_ms: int) -> Lifecycle:
    _require(found, "finish the drain of", _DRAINING)
    return _next(found, _DRAINED, token, now_ms)


def fail(found: Lifecycle, token: str, now_ms: int, reason: str) -> Lifecycle:
    _require(found, "fail the drain of", _DRAINING)
    return _next(found, _FAILED, token, now_ms, reason)


def revert(found: Lifecycle, token: str, now_ms: int, reason: str) -> Lifecycle:
    """Make a Drained bookie Draining again, since a ledger names it after all: its client picked the bookie
    before the drain began.
    """
    _require(found, "drain again", _DRAINED)
    return _next(found, _DRAINING, token, now_ms, reason)


def allowed_from(state: LifecycleState) -> tuple[LifecycleState, ...]:
    """Return the states that a person may request for a bookie in this state. From DrainingFailed, Draining
    is a retry.
    """
    return _ALLOWED[state]


_ALLOWED: Final = {
    _ACTIVE: (_DRAINING,),
    _DRAINING: (_ACTIVE,),
    _DRAINED: (_ACTIVE,),
    _FAILED: (_DRAINING, _ACTIVE, _DRAINED),
}


def _next(
    found: Lifecycle, state: LifecycleState, token: str, now_ms: int, reason: str = ""
) -> Lifecycle:
    assert token != found.token, "LC2: a token was used twice"
    reason = reason[:REASON_CHARS_MAX]
    return replace(found, state=state, token=token, since_ms=now_ms, reason=reason)


def _require(found: Lifecycle, verb: str, *states: LifecycleState) -> None:
    if found.state not in states:
        allowed = " or ".join(state.value for state in states)
        raise LifecycleConflict(
            f"cannot {verb} a bookie that is {found.state.value}; it has to be {allowed}",
            state=found.state.value,
            allowed=tuple(each.value for each in allowed_from(found.state)),
        )


# --- Whether enough bookies remain -----------------------------------------------------------


def has_room(
    metadata: LedgerMetadata, leaving: Collection[BookieId], targets: Collection[BookieId]
) -> bool:
    """Return whether each fragment's leaving members can be replaced by distinct targets. If some ledger gets
    False, a drain is refused at once, unless it is forced (LC3). `targets` are the bookies that accept
    entries and do not leave.
    """
    for fragment in metadata.fragments:
        members = set(fragment.ensemble)
        to_replace = sum(member in leaving for member in members)
        if to_replace > sum(target not in members and target not in leaving for target in targets):
            return False
    return True

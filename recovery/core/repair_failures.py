"""Records the failed attempts to repair one ledger, and when the next attempt is due.

JSON, `{"attempts": 3, "in_a_row": 2, "code": "BOOKIE_UNREACHABLE", "message": "…", "failed_ms": 17…,
"next_try_ms": 17…, "losses": [[0, 11, ["b1:3181", "b2:3181"]]], "drains": ["4e0c…"], "version": 1}`, in one
node for each ledger (`recovery/repair_failure_nodes.py`). The node is in our own tree, since a mark has no field for
it, and is removed when the repair succeeds.

`attempts` counts all attempts and sets the pause. `in_a_row` counts only the latest consecutive attempts that
ended with this `code`: one refusal after three other errors must not count as four refusals.

`drains` has the lifecycle tokens of the ledger's bookies that were draining at that attempt. A drain that
begins, or is retried, has a new token: then attempts are counted from one again, and the next attempt is due
at once (RP7). This comparison needs no clock, so the clocks of a worker and of an operator may differ.

A ledger is *unrecoverable* if, for some of its entries, every holder answered ABSENT or returned bad bytes.
The field `losses` names these entries and holders. An unrecoverable ledger is not retried: a person decides.
If copies are UNKNOWN or unreachable, the repair waits for them without a limit.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.ledger.core.copy_comparison import CopyState
from rollbook.proto.errors import BadMetadata, InvalidRequest, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.proto.ids import BookieId, EntryId, parse_bookie_id
from rollbook.recovery.core.entry_spans import ranges_of

_VERSION: Final = 1
PAUSE_S_MAX: Final = 600
_LOST_FOR_CERTAIN: Final = (CopyState.MISSING, CopyState.BAD)
# The maximum number of ranges that are kept: a longer list would not help a reader.
_LOSSES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LostEntries:
    """Entries without a good copy; both ends are inclusive."""

    first_entry: EntryId
    last_entry: EntryId
    holders: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """Entries that no holder returned."""

    losses: tuple[LostEntries, ...]
    unavailable: (
        # One entry that may still turn up, and each holder's answer. Empty: there is no such entry.
        str
    )


def judge_missing(said: Mapping[EntryId, Mapping[BookieId, CopyState]]) -> MissingEntries:
    """Judge entries that no holder returned by the holders' answers. The entries have to be in ascending
    order. An entry is lost only if every holder answers ABSENT or returns bad bytes.
    """
    lost = {
        entry_id: None
        for entry_id, states in said.items()
        if states and all(state in _LOST_FOR_CERTAIN for state in states.values())
    }
    losses = tuple(
        LostEntries(EntryId(first), EntryId(last), tuple(said[EntryId(first)]))
        for first, last in ranges_of(lost)
    )
    uncertain = next((each for each in said if each not in lost), None)
    if uncertain is None:
        return MissingEntries(losses, "")
    states = ", ".join(f"{bookie}: {state.value}" for bookie, state in said[uncertain].items())
    return MissingEntries(losses, f"entry {uncertain} cannot be read now ({states})")


@dataclass(frozen=True, slots=True)
class Failure:
    attempts: int = 0
    code: str = ""  # The code of the latest error.
    message: str = ""
    failed_ms: int = 0
    # The time of the next attempt. None: no retry is made, and a person decides.
    next_try_ms: int | None = 0
    losses: tuple[LostEntries, ...] = ()
    drains: tuple[str, ...] = ()  # The tokens of the drains at the time of the latest attempt.
    in_a_row: int = 0  # The number of latest consecutive attempts that failed with `code`.

    @property
    def is_unrecoverable(self) -> bool:
        return bool(self.losses)

    def counts_for(self, drains: Sequence[str]) -> bool:
        """Return whether the failure counts for these drains, which it does if none of them began later
        (RP7).
        """
        return all(token in self.drains for token in drains)

    def is_due(self, now_ms: int) -> bool:
        """Return whether the next attempt is due. Since clocks differ and jump, an attempt is also due if it
        is farther away than the longest pause.
        """
        if self.next_try_ms is None:
            return False
        return not now_ms < self.next_try_ms <= now_ms + PAUSE_S_MAX * 1000

    def pause_s(self, now_ms: int, look_again_s: float) -> float:
        """Return how long to postpone a ledger that is not due. The pause is at most `look_again_s`, since
        another worker may change the failure.
        """
        if self.next_try_ms is None:
            return look_again_s
        return min(look_again_s * 1000, self.next_try_ms - now_ms) / 1000


def next_look_s(left_s: Iterable[float], *, shortest_s: float, longest_s: float) -> float:
    """Return the pause until the next look at all tasks. `left_s` has the times until postponed tasks are
    due: the pause is the shortest of them, within these bounds. If the bounds contradict each other,
    `longest_s` counts.
    """
    return min(max(min(left_s, default=longest_s), shortest_s), longest_s)


def after_failure(
    before: Failure | None,
    now_ms: int,
    code: str,
    message: str,
    losses: Sequence[LostEntries] = (),
    *,
    drains: Sequence[str] = (),
    first_pause_s: float = 5.0,
) -> Failure:
    """Return the new record after another failed attempt. The pause doubles up to 10 min. If one of `drains`
    began after an earlier attempt, that attempt does not count (RP7).
    """
    earlier = before if before and before.counts_for(drains) else Failure()
    attempts = earlier.attempts + 1
    in_a_row = (earlier.in_a_row if earlier.code == code else 0) + 1
    pause_s = min(first_pause_s * 2 ** min(attempts - 1, 20), PAUSE_S_MAX)
    next_try_ms = None if losses else now_ms + int(pause_s * 1000)
    kept_losses = tuple(losses[:_LOSSES_MAX])
    return Failure(
        attempts, code, message, now_ms, next_try_ms, kept_losses, tuple(drains), in_a_row
    )


def pack_failure(failure: Failure) -> bytes:
    fields = {
        "version": _VERSION,
        "attempts": failure.attempts,
        "in_a_row": failure.in_a_row,
        "code": failure.code,
        "message": failure.message,
        "failed_ms": failure.failed_ms,
        "next_try_ms": failure.next_try_ms,
        "losses": [
            [loss.first_entry, loss.last_entry, list(loss.holders)] for loss in failure.losses
        ],
        "drains": list(failure.drains),
    }
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_failure(data: bytes) -> Failure:
    """Return the failure in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        version = fields["version"]
        if version != _VERSION:
            raise UnsupportedVersion(f"a failure record in a format of version {version!r:.20}")
        drains = tuple(fields.get("drains", ()))  # Older releases did not write `drains`.
        # Older releases did not write `in_a_row`.
        in_a_row = fields.get("in_a_row", fields["attempts"])
        texts = fields["code"], fields["message"], *drains
        numbers = [fields["attempts"], in_a_row, fields["failed_ms"], fields["next_try_ms"]]
        losses = tuple(
            LostEntries(EntryId(first), EntryId(last), tuple(map(parse_bookie_id, holders)))
            for first, last, holders in fields["losses"]
        )
        numbers += [each for loss in losses for each in (loss.first_entry, loss.last_entry)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest):
        raise BadMetadata(f"not a failure of a repair: {data[:80]!r}") from None
    if not all(isinstance(each, str) for each in texts):
        raise BadMetadata(f"not a failure of a repair: {data[:80]!r}")
    wrong = [each for each in numbers if each is not None and type(each) is not int]
    if wrong or None in (fields["attempts"], in_a_row, fields["failed_ms"]):
        raise BadMetadata(f"not a failure of a repair: {data[:80]!r}")
    return Failure(
        fields["attempts"],
        fields["code"],
        fields["message"],
        fields["failed_ms"],
        fields["next_try_ms"],
        losses,
        drains,
        in_a_row,
    )

"""How metadata may change, judged commit by commit.

- **fragments** (LM1, LM2, LM3, FR6, WR4, WR9): first entries ascend from 0 and members are distinct; a writer
  replaces or appends the last fragment of an open ledger and nothing else; setting it in recovery changes no
  fragment, and recovery's own fragments come with the close; a closed ledger stays as it is.
- A repair (LM4) changes one slot of one fragment whose end is known, of a ledger that is not in recovery; only
  the world's repairers do that, and they change nothing else of an open ledger but that they recover it.
- **versions**: each change goes from the version that its author named to the next one.
- **length**: a closed ledger's length is that of the payloads up to its last entry.
- **frozen** (LM2, LM3, WR4): once a ledger is in recovery, the process that wrote it changes nothing of it.
- **absence** (FR3, Q2): who closes a ledger in recovery has heard from `write - ack + 1` bookies of the next
  entry's write set that they do not have it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.metadata import LedgerMetadata, LedgerState
from tests.simulation.checkers.ledger.facts import Facts, LedgerFacts, OnBroken

FRAGMENTS: Final = "fragments"
VERSIONS: Final = "versions"
LENGTH: Final = "length"
FROZEN: Final = "frozen"
ABSENCE: Final = "absence"

_OPEN, _IN_RECOVERY, _CLOSED = LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED


class MetadataRules:
    def __init__(self, facts: Facts, on_broken: OnBroken) -> None:
        self._facts = facts
        self._break = on_broken
        self._denials: dict[tuple[str, int, int], dict[str, None]] = {}
        self._lasts: dict[tuple[str, int], dict[str, int]] = {}

    def on_denied(self, asker: str, bookie: str, ledger_id: int, entry_id: int) -> None:
        """The bookie tells a process, under a fence, that it does not have the entry."""
        self._denials.setdefault((asker, ledger_id, entry_id), {})[bookie] = None

    def on_last_named(self, asker: str, bookie: str, ledger_id: int, last: int) -> None:
        """The bookie tells a process, when it is fenced, which entry is its last one."""
        lasts = self._lasts.setdefault((asker, ledger_id), {})
        lasts[bookie] = min(last, lasts.get(bookie, last))

    def _deniers(self, asker: str, ledger_id: int, entry_id: int) -> dict[str, None]:
        named = self._lasts.get((asker, ledger_id), {}).items()
        below = {bookie: None for bookie, last in named if last < entry_id}
        return self._denials.get((asker, ledger_id, entry_id), {}) | below

    def on_changed(
        self,
        ledger: LedgerFacts,
        before: LedgerMetadata | None,
        version_before: int,
        authors: Sequence[tuple[str, int | None]],
    ) -> None:
        """`authors` have asked for this very change: each a process, and the version it named."""
        now = ledger.metadata
        if now is None:
            if not ledger.is_doomed:
                self._break(FRAGMENTS, f"ledger {ledger.ledger_id} is gone, and nobody deletes it")
            return
        self._check_shape(ledger, now)
        if before is None:
            ledger.writer = authors[0][0] if authors else ""
            return
        if ledger.version != version_before + 1 or not any(
            version == version_before for _, version in authors
        ):
            step = f"from version {version_before} to {ledger.version}, authors {authors}"
            self._break(VERSIONS, f"ledger {ledger.ledger_id} goes {step}")
        names = [name for name, _ in authors]
        is_repair = repaired_slot(before, now) is not None and self._facts.are_repairers(names)
        if not is_repair:
            self._check_change(ledger, before, now)
        if before.state is not _OPEN and names and all(name == ledger.writer for name in names):
            self._break(FROZEN, f"ledger {ledger.ledger_id} is changed by its writer {names[0]}")
        if is_repair:
            return
        if before.state is _OPEN and now.state is not _IN_RECOVERY and ledger.writer not in names:
            self._break(FRAGMENTS, f"ledger {ledger.ledger_id} is open, and changed by {names}")
        if now.state is _CLOSED and now.last_entry is not None:
            length = sum(ledger.sizes[: now.last_entry + 1])
            if now.length != length:
                what = f"{ledger.name(now.last_entry)} is its last, at {now.length} bytes"
                self._break(LENGTH, f"{what} instead of {length}")
        if before.state is _IN_RECOVERY and now.state is _CLOSED:
            self._check_absence(ledger, before, now, names)

    def _check_shape(self, ledger: LedgerFacts, now: LedgerMetadata) -> None:
        starts = [fragment.first_entry for fragment in now.fragments]
        if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            self._break(FRAGMENTS, f"ledger {ledger.ledger_id} has fragments at {starts}")
        for fragment in now.fragments:
            if len(dict.fromkeys(fragment.ensemble)) != now.quorum.ensemble:
                self._break(FRAGMENTS, f"ledger {ledger.ledger_id} lies on {fragment.ensemble}")

    def _check_change(
        self, ledger: LedgerFacts, before: LedgerMetadata, now: LedgerMetadata
    ) -> None:
        kept = len(before.fragments) - 1
        same_past = now.fragments[:kept] == before.fragments[:kept]
        first = before.fragments[-1].first_entry
        match before.state, now.state:
            case (LedgerState.OPEN, LedgerState.OPEN):
                is_right = (
                    same_past
                    and len(now.fragments) - kept in (1, 2)
                    and (
                        now.fragments[kept].first_entry == first
                        if len(now.fragments) == kept + 1
                        else now.fragments[kept] == before.fragments[-1]
                    )
                )
            case (LedgerState.OPEN, LedgerState.IN_RECOVERY | LedgerState.CLOSED):
                is_right = now.fragments == before.fragments
            case (LedgerState.IN_RECOVERY, LedgerState.CLOSED):
                is_right = same_past and now.fragments[kept].first_entry == first
            case _:
                is_right = False
        fixed = ("quorum", "digest_type", "password", "custom", "created_ms")
        is_right = is_right and all(getattr(before, f) == getattr(now, f) for f in fixed)
        if not is_right:
            self._break(FRAGMENTS, f"ledger {ledger.ledger_id} goes from {before} to {now}")

    def _check_absence(
        self, ledger: LedgerFacts, before: LedgerMetadata, now: LedgerMetadata, names: Sequence[str]
    ) -> None:
        """By the ensemble that recovery found, the very one the writer went by."""
        assert now.last_entry is not None
        entry_id = EntryId(max(NO_ENTRY, now.last_entry) + 1)
        ensemble = before.fragments[-1].ensemble
        for name in names:
            denials = self._deniers(name, ledger.ledger_id, entry_id)
            slots = self._facts.slots_that(ensemble, denials.__contains__)
            if now.quorum.is_absent(entry_id, slots):
                return
        if names:
            told = {name: list(self._deniers(name, ledger.ledger_id, entry_id)) for name in names}
            self._break(ABSENCE, f"{ledger.name(entry_id)} is cut off, denied by {told}")


def repaired_slot(before: LedgerMetadata, now: LedgerMetadata) -> tuple[int, int] | None:
    """Which fragment and slot a change gives to another bookie, if it does nothing else."""
    if before.state is _IN_RECOVERY or len(before.fragments) != len(now.fragments):
        return None
    changed = [
        (index, slot)
        for index, (old, new) in enumerate(zip(before.fragments, now.fragments, strict=True))
        for slot, (gone, come) in enumerate(zip(old.ensemble, new.ensemble, strict=True))
        if gone != come
    ]
    if len(changed) != 1 or before.last_entry_of(changed[0][0]) is None:
        return None
    return changed[0] if replace(before, fragments=now.fragments) == now else None

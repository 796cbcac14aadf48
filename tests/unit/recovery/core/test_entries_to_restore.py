"""Which doubts may be settled, compared with a model that handles one entry at a time."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.ledger.core.copy_comparison import Copy, CopyState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import ENTRY_ID_MAX, Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.entries_to_restore import expected, judge, stretches
from rollbook.recovery.core.entry_spans import EntrySpan, covers, ranges_of

B = BookieId("b0")
NAMES = [BookieId(f"b{number}") for number in range(6)]
LAST_MAX = 40
BAD = (CopyState.MISSING, CopyState.BAD)
OPEN_ENDED = (CopyState.UNKNOWN, CopyState.UNREACHABLE)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, draw(st.integers(1, write)))
    firsts = sorted({0, *draw(st.lists(st.integers(1, LAST_MAX), max_size=3))})
    fragments = tuple(
        Fragment(EntryId(first), tuple(draw(st.permutations(NAMES))[:ensemble])) for first in firsts
    )
    last = draw(st.integers(firsts[-1] - 1, LAST_MAX))
    return LedgerMetadata(
        LedgerId(1), quorum, fragments, LedgerState.CLOSED, EntryId(last), length=0
    )


def some_ranges() -> st.SearchStrategy[list[EntrySpan]]:
    """Ascending ranges, as a bookie keeps them; the last one may be unbounded."""
    ids = st.sets(st.integers(-1, LAST_MAX + 5), max_size=30)
    return st.builds(
        lambda found, is_endless: (
            [*ranges_of(sorted(found)), EntrySpan(LAST_MAX + 10, ENTRY_ID_MAX)]
            if is_endless
            else ranges_of(sorted(found))
        ),
        ids,
        st.booleans(),
    )


def members_of(metadata: LedgerMetadata, entry_id: int) -> tuple[BookieId, ...]:
    """The entry's write set, by its definition."""
    ensemble, quorum = metadata.fragment_of(EntryId(entry_id)).ensemble, metadata.quorum
    return tuple(ensemble[(entry_id + copy) % quorum.ensemble] for copy in range(quorum.write))


@dataclass
class Healed:
    settled: list[EntrySpan]
    lost: list[int]
    waiting: list[int]
    given_up: list[int]
    brought: list[int]


def heal(
    metadata: LedgerMetadata,
    doubted: list[EntrySpan],
    copies: dict[tuple[BookieId, int], Copy],
    accepted: list[EntrySpan],
    step: int,
) -> Healed:
    """Heal like `LedgerLossHealer`, with bookies that answer at once."""
    healed = Healed([], [], [], [], [])
    for first, last, fragment in stretches(metadata, B, doubted):
        if fragment is None:
            healed.settled.append(EntrySpan(first, last))
            continue
        for start in range(first, last + 1, step):
            window = range(start, min(start + step, last + 1))
            wanted = expected(metadata.quorum, fragment, B, window)
            said = {
                each: {
                    member: copies[member, each]
                    for member in members_of(metadata, each)
                    if member != B
                }
                for each in wanted
            }
            held = [e for e in wanted if any(isinstance(c, int) for c in said[e].values())]
            healed.brought += held
            found = judge(window, wanted, held, said, accepted)
            healed.settled += found.settled
            healed.lost += found.lost
            healed.waiting += found.waiting
            healed.given_up += found.given_up
    return healed


@settings(max_examples=400, deadline=None)
@given(ledgers(), some_ranges(), some_ranges(), st.integers(1, 50), st.data())
def test_doubts_are_settled_exactly_where_allowed(
    metadata: LedgerMetadata,
    doubted: list[EntrySpan],
    accepted: list[EntrySpan],
    step: int,
    data: st.DataObject,
) -> None:
    """HL1: an entry's doubt is settled if it is restored, not needed, or accepted as lost."""
    states: st.SearchStrategy[Copy] = st.sampled_from([1, *BAD, *OPEN_ENDED])
    copies: dict[tuple[BookieId, int], Copy] = {
        (member, entry_id): data.draw(states)
        for entry_id in range(LAST_MAX + 1)
        for member in members_of(metadata, entry_id)
    }
    healed = heal(metadata, doubted, copies, accepted, step)
    assert all(first <= last for first, last in healed.settled)
    assert metadata.last_entry is not None
    for entry_id in range(-1, LAST_MAX + 20):
        is_doubted = covers(doubted, entry_id)
        is_needed = 0 <= entry_id <= metadata.last_entry and B in members_of(metadata, entry_id)
        others = (
            [copies[m, entry_id] for m in members_of(metadata, entry_id) if m != B]
            if is_needed
            else []
        )
        is_sound_elsewhere = 1 in others
        is_accepted = covers(accepted, entry_id)
        may_go = not is_needed or is_sound_elsewhere or is_accepted
        assert covers(healed.settled, entry_id) == (is_doubted and may_go), entry_id
        if is_doubted and is_needed:
            assert (entry_id in healed.brought) == is_sound_elsewhere
            may_turn_up = any(each in OPEN_ENDED for each in others)
            stays = not may_go
            assert (entry_id in healed.waiting) == (stays and may_turn_up)
            assert (entry_id in healed.lost) == (stays and not may_turn_up)
            assert (entry_id in healed.given_up) == (is_accepted and not is_sound_elsewhere)


def test_entry_without_other_members_is_lost() -> None:
    """HL1: no other bookie can have a copy, so the entry is lost and stays in doubt."""
    found = judge(range(2), [EntryId(0), EntryId(1)], [EntryId(0)], {EntryId(1): {}}, [])
    assert (found.settled, found.lost, found.waiting) == ([EntrySpan(0, 0)], [1], {})

"""A writer and a recovery race at bookies, message by message, in random order.

The rules are the product's; messages are lists. An entry that its writer took for confirmed must be
in the closed ledger (FR1, FR3). Breaking any rule must lose entries here: otherwise the test would
prove nothing.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rollbook.ledger.core.lac_survey import LacSurvey
from rollbook.ledger.core.tail_search import TailProbe, TailSearch
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import Entry

SEEDS = 3_000
BATCHES = 4


@dataclass
class Rules:
    """The rules of recovery; a test can break each."""

    searches_fence: bool = True
    short_batches_prove_nothing: bool = True
    silence_proves_nothing: bool = True
    lasts_are_behind_the_fence: bool = True
    own_last_is_there: bool = True
    negatives_needed: Callable[[Quorum], int] = lambda quorum: quorum.absence


@dataclass
class Bookie:
    entries: dict[int, int] = field(default_factory=dict)  # Entry -> the LAC that came with it.
    is_fenced: bool = False
    is_down: bool = False


class Game:
    """One ledger with one writer that learns of the recovery only from a fence."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        size = self.chance.choice((3, 3, 3, 4, 5))
        write = self.chance.randint(2, min(3, size))
        self.quorum = Quorum(size, write, self.chance.randint(1, write))
        self.bookies = [Bookie() for _ in range(size)]
        self.sent: list[tuple[int, int, int]] = []  # Adds in flight: slot, entry, LAC.
        self.replies: list[
            tuple[int, int, int]
        ] = []  # Replies in flight: slot, entry, whether the bookie is fenced.
        self.acked: dict[int, int] = {}  # Entry -> bit mask of slots that acknowledged it.
        self.lac = -1
        self.next_entry = 0
        self.questions: list[TailProbe] = []
        self.is_stopped = False

    # --- The writer ---------------------------------------------------------------------------

    def write(self) -> None:
        if self.is_stopped:
            return
        entry_id = EntryId(self.next_entry)
        self.next_entry += 1
        self.acked[entry_id] = 0
        self.sent += [(slot, entry_id, self.lac) for slot in self.quorum.write_slots(entry_id)]

    def deliver_add(self) -> None:
        """Deliver an add: in order for each bookie, in any order between bookies."""
        if self.sent:
            slot, entry_id, lac = self._take(self.sent)
            bookie = self.bookies[slot]
            if not bookie.is_down:
                if not bookie.is_fenced:
                    bookie.entries[entry_id] = lac
                self.replies.append((slot, entry_id, bookie.is_fenced))

    def deliver_reply(self) -> None:
        if not self.replies or self.is_stopped:
            return
        slot, entry_id, is_fenced = self._take(self.replies)
        if is_fenced:
            self.is_stopped = True  # A fenced writer sends and confirms nothing more.
            return
        self.acked[entry_id] |= 1 << slot
        while self.quorum.is_acked(EntryId(self.lac + 1), self.acked.get(self.lac + 1, 0)):
            self.lac += 1

    def _take(self, messages: list[tuple[int, int, int]]) -> tuple[int, int, int]:
        slot = self.chance.choice(messages)[0]
        return messages.pop(next(i for i, each in enumerate(messages) if each[0] == slot))

    def let_writer_run(self) -> None:
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            if self.chance.random() < 0.3:
                self.write()
            self.deliver_add()
            self.deliver_reply()

    # --- The recovery -------------------------------------------------------------------------

    def recover(self) -> int | None:
        """Return the last entry, or None if it could not be determined."""
        survey, lasts = LacSurvey(self.quorum), dict[int, Entry | None]()
        slots = list(range(self.quorum.ensemble))
        self.chance.shuffle(slots)
        for slot in slots:
            if survey.is_covered and self.chance.random() < 0.8:
                break
            self.let_writer_run()
            bookie = self.bookies[slot]
            if bookie.is_down:
                survey.on_silence(slot, "down")
                continue
            lasts[slot] = self._fence(slot)
            if (last := lasts[slot]) is not None:
                survey.on_lac(EntryId(bookie.entries[last.entry_id]), last.entry_id)
            survey.on_heard(slot)
        if not survey.is_covered:
            return None
        return self._search(survey, lasts)

    def _fence(self, slot: int) -> Entry | None:
        bookie = self.bookies[slot]
        if self.rules.lasts_are_behind_the_fence:
            bookie.is_fenced = True
        last = max(bookie.entries, default=None)
        if not self.rules.lasts_are_behind_the_fence:
            self.let_writer_run()
            bookie.is_fenced = True
        return None if last is None else Entry(LedgerId(1), EntryId(last), NO_ENTRY, 0, b"")

    def _search(self, survey: LacSurvey, lasts: dict[int, Entry | None]) -> int | None:
        search = TailSearch(
            self.quorum,
            survey.last_add_confirmed,
            survey.highest_entry,
            batch_slots=self.chance.getrandbits(self.quorum.ensemble),
            batch_entries_max=BATCHES,
        )
        if self.rules.negatives_needed(self.quorum) != self.quorum.absence:
            weak = Quorum(self.quorum.ensemble, self.quorum.write, self.quorum.write)
            search._quorum = weak  # One negative suffices.
        words_are_good = self.chance.choice((0.0, 0.5, 1.0))
        good = [s for s in range(self.quorum.ensemble) if self.chance.random() < words_are_good]
        late = [slot for slot in good if slot not in lasts]
        for slot in late:
            search.expect_last(slot)
        for slot in good:
            if slot in lasts:
                self._tell_last(search, slot, lasts[slot])
        pending: list[TailProbe] = []
        while not search.is_over:
            self.let_writer_run()
            pending += search.plan(self.chance.randint(1, 8))
            search.take_found()
            if search.is_over:
                break
            if late and (not pending or self.chance.random() < 0.3):
                slot = late.pop()
                if self.bookies[slot].is_down or self.chance.random() < 0.2:
                    search.on_no_last(slot)
                else:
                    self._tell_last(search, slot, self._fence(slot))
                continue
            if search.is_stuck or not pending:
                return None
            self._answer(search, pending.pop(self.chance.randrange(len(pending))))
            if search.is_absence_proven and self.chance.random() < 0.5:
                search.stop_waiting()
        search.take_found()
        return search.next_entry - 1

    def _tell_last(self, search: TailSearch, slot: int, last: Entry | None) -> None:
        if last is not None and not self.rules.own_last_is_there:
            before = last.entry_id - 1
            last = last._replace(entry_id=EntryId(before)) if before >= 0 else None
        search.on_last(slot, last)

    def _answer(self, search: TailSearch, ask: TailProbe) -> None:
        bookie = self.bookies[ask.slot]
        if bookie.is_down or self.chance.random() < 0.1:
            if self.rules.silence_proves_nothing:
                search.on_failure(ask, "down")
            else:
                search.on_negative(ask)
            return
        if self.rules.searches_fence:
            bookie.is_fenced = True
        is_dense = self.quorum.ensemble == self.quorum.write
        found: list[Entry] = []
        for entry_id in range(ask.first_entry, ask.first_entry + ask.span):
            if entry_id in bookie.entries:
                found.append(Entry(LedgerId(1), EntryId(entry_id), NO_ENTRY, 0, b""))
            elif is_dense:
                break
        if not found:
            search.on_negative(ask)
            return
        kept = found[: self.chance.randint(1, len(found))]
        search.on_entries(ask, kept)
        if not self.rules.short_batches_prove_nothing:
            for entry_id in range(kept[-1].entry_id + 1, ask.first_entry + ask.span):
                search.on_negative(TailProbe(ask.slot, EntryId(entry_id), 1))

    def play(self) -> bool:
        """Whether the ledger holds every entry confirmed before or after the close."""
        for _ in range(self.chance.randint(0, 12)):
            self.write()
            self.let_writer_run()
        for bookie in self.bookies:
            bookie.is_down = self.chance.random() < 0.15
        last_entry = self.recover()
        if last_entry is None:
            return True
        for _ in range(100):
            self.write()
            self.deliver_add()
            self.deliver_reply()
        while self.sent or (self.replies and not self.is_stopped):
            self.deliver_add()
            self.deliver_reply()
        return self.lac <= last_entry


def losses(rules: Rules) -> list[int]:
    return [seed for seed in range(SEEDS) if not Game(seed, rules).play()]


def test_recovery_cuts_off_no_confirmed_entry() -> None:
    """FR1, FR3."""
    assert losses(Rules()) == []


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Rules(searches_fence=False), id="searches do not fence"),
        pytest.param(Rules(short_batches_prove_nothing=False), id="short batches are negatives"),
        pytest.param(Rules(silence_proves_nothing=False), id="silence is a negative"),
        pytest.param(Rules(negatives_needed=lambda _: 1), id="one negative is enough"),
        pytest.param(Rules(lasts_are_behind_the_fence=False), id="lasts from before the fence"),
        pytest.param(Rules(own_last_is_there=False), id="who names its last lacks it"),
    ],
)
def test_breaking_any_recovery_rule_loses_entries(broken: Rules) -> None:
    """FR1, FR3. The first case is #2614. The seeds are fixed, so the result is deterministic."""
    assert len(losses(broken)) >= 3

"""Sees everything and breaks the run at the first broken rule.

It knows what no participant can know: what is durable on each disk, what every bookie said, what
metadata holds at this instant. Rules, each by the name under which a run fails:

- **truncated**: nothing beyond the last entry of a closed ledger was or will be confirmed.
- **copies**: of a closed ledger, every entry has `ack` copies on the ensemble that is named for it.
- **order**: entry i holds the i-th body that was written, on every bookie.
- **fence**: a bookie that answered a fencing question accepts no ordinary add from then on.
- **fragments**: they start at 0, ascend, and have distinct members.
- **changes**: a writer replaces or adds the last fragment of an open ledger; marking it changes no
  fragment; recovery's new fragments come with the close; a closed ledger stays as it is.
- **clean LAC**: a LAC that a bookie may hand out names entries with `ack` copies on the ensemble
  that metadata names for them now.
- **durable ack**: what is confirmed has `ack` copies that no power cut can take away.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from rollbook.proto.ids import NO_ENTRY, BookieId
from rollbook.proto.quorum import Ensemble
from tests.simulation.kernel.world import World
from tests.simulation.worlds.toy.bookie import JOURNAL, Bookie, copy_in
from tests.simulation.worlds.toy.ledger import CLOSED, PATH, QUORUM, Ledger
from tests.simulation.worlds.toy.wire import ADD, FENCING_READ, HAVE, NAMES, Message, Stream

TRUNCATED: Final = "truncated"
COPIES: Final = "copies"
ORDER: Final = "order"
FENCE: Final = "fence"
FRAGMENTS: Final = "fragments"
CHANGES: Final = "changes"
CLEAN_LAC: Final = "clean LAC"
DURABLE_ACK: Final = "durable ack"
OUTCOMES: Final = frozenset((TRUNCATED, COPIES, ORDER))  # What users would notice.
EVERY_RULE: Final = OUTCOMES | {FENCE, FRAGMENTS, CHANGES, CLEAN_LAC, DURABLE_ACK}


class Oracle:
    def __init__(
        self, world: World, rules: frozenset[str], tell: Callable[[str], None] | None
    ) -> None:
        self.bookies: dict[BookieId, Bookie] = {}  # The newest process of each that has served.
        self.ledger: Ledger | None = None  # As committed.
        self.broke: str | None = None
        self._world, self._rules, self._tell = world, rules, tell
        self._version = -1
        self._confirmed: int = NO_ENTRY
        self._clean: int = NO_ENTRY  # Up to here LACs have been found clean.
        self._fence_answered: dict[BookieId, None] = {}

    def on_serving(self, bookie: Bookie) -> None:
        self.bookies[bookie.name] = bookie
        if self._tell:
            fenced = ", fenced" if bookie.fenced else ""
            self._tell(f"{bookie.name} serves, with entries {_ranges(bookie.entries)}{fenced}")

    def on_answer(self, bookie: Bookie, stream: Stream, ask: Message, answer: Message) -> None:
        if self._tell:
            subject = f"entry {ask.entry}" if ask.entry >= 0 else "the LAC"
            told = f"{NAMES[answer.kind]}, LAC {answer.lac}"
            self._tell(
                f"{bookie.name} answers {stream.peer}: {NAMES[ask.kind]} of {subject}: {told}"
            )
        self.look_at_metadata()
        if ask.kind == FENCING_READ:
            self._fence_answered[bookie.name] = None
        elif answer.kind == HAVE:
            if ask.kind == ADD and bookie.name in self._fence_answered:
                self._break(FENCE, f"{bookie.name} was fenced and accepts entry {ask.entry}")
            self._check_lac(bookie.lac)

    def on_confirmed(self, entry: int, body: int, ensemble: Ensemble) -> None:
        if self._tell:
            self._tell(f"writer confirms entry {entry}")
        self.look_at_metadata()
        self._confirmed = entry
        copies = sum(self._survives(name, entry, body) for name in ensemble)
        if copies < QUORUM.ack:
            self._break(DURABLE_ACK, f"entry {entry} is confirmed with {copies} durable copies")
        self._check_end()

    # --- At the end ---------------------------------------------------------------------------

    def check_copies(self, body_of: Callable[[int], int]) -> None:
        """When all bookies have come back from a power cut."""
        assert self.ledger is not None
        assert self.ledger.last is not None
        for entry in range(self.ledger.last + 1):
            held = [name for name in self.ledger.ensemble_of(entry) if self._holds(name, entry)]
            if len(held) < QUORUM.ack:
                on = " and ".join(held) or "no bookie"
                self._break(COPIES, f"entry {entry} of {self.ledger.last} is on {on} only")
        for bookie in self.bookies.values():
            for entry, body in bookie.entries.items():
                if body != body_of(entry):
                    self._break(ORDER, f"{bookie.name} has body {body} as entry {entry}")

    def check_changes(self) -> None:
        """Of the metadata, one commit after the other."""
        rows = [commit.rows.get(PATH) for commit in self._world.metadata.commits]
        ledgers = [Ledger.unpack(row.value) for row in rows if row is not None]
        for before, after in pairwise(ledgers):
            if not _is_rightful(before, after):
                self._break(CHANGES, f"the ledger was {before}; it became {after}")

    # --- Rules --------------------------------------------------------------------------------

    def look_at_metadata(self) -> None:
        node = self._world.metadata.tree.get(PATH)
        if node is None or node.stat.version == self._version:
            return
        self._version = node.stat.version
        self.ledger = ledger = Ledger.unpack(node.value)
        if self._tell:
            self._tell(f"metadata: the ledger is {ledger}")
        starts = [first for first, _ in ledger.fragments]
        if starts != sorted(set(starts)) or starts[0] != 0:
            self._break(FRAGMENTS, f"they start at {starts}")
        for _, ensemble in ledger.fragments:
            if len(set(ensemble)) != QUORUM.ensemble:
                self._break(FRAGMENTS, f"a bookie twice in {ensemble}")
        self._check_end()
        self._clean = NO_ENTRY  # Other bookies may be named now.
        self._check_lac(max((bookie.lac for bookie in self.bookies.values()), default=NO_ENTRY))

    def _check_end(self) -> None:
        assert self.ledger is not None
        if self.ledger.state == CLOSED and self._confirmed > (self.ledger.last or 0):
            text = f"entry {self._confirmed} is confirmed, and closed is {self.ledger.last}"
            self._break(TRUNCATED, text)

    def _check_lac(self, lac: int) -> None:
        for entry in range(self._clean + 1, lac + 1):
            assert self.ledger is not None
            ensemble = self.ledger.ensemble_of(entry)
            copies = sum(self._holds(name, entry) for name in ensemble)
            if copies < QUORUM.ack:
                self._break(CLEAN_LAC, f"LAC {lac}, and entry {entry} has {copies} named copies")
        self._clean = max(self._clean, lac)

    def _survives(self, name: BookieId, entry: int, body: int) -> bool:
        """Under whichever of its two names a power cut leaves the journal: a starting bookie swaps
        one for a copy of it.
        """
        system = self._world.nodes[name].disk.system
        journals = (system.find_durable(JOURNAL), system.find(JOURNAL))
        return all(
            number is not None and copy_in(bytes(system.files[number].durable), entry, body)
            for number in journals
        )

    def _holds(self, name: BookieId, entry: int) -> bool:
        bookie = self.bookies.get(name)
        return bookie is not None and entry in bookie.entries

    def _break(self, rule: str, text: str) -> None:
        if rule in self._rules and self.broke is None:
            self.broke = rule
            self._world.fail(f"{rule}: {text}")


def _is_rightful(before: Ledger, after: Ledger) -> bool:
    old, new = before.fragments, after.fragments
    match before.state, after.state:
        case "open", "open":
            return new[:-1] in (old, old[:-1])
        case "open", ("in recovery" | "closed"):
            return new == old
        case "in recovery", "closed":
            return new[: len(old) - 1] == old[:-1] and new[len(old) - 1][0] == old[-1][0]
    return False


def _ranges(entries: dict[int, int]) -> str:
    return " ".join(map(str, sorted(entries))) or "none"

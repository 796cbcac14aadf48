"""Records outages of bookies and of the metadata store: the causes of late responses (SV8).

A server records the outages that it notices in its normal work: bookies that leave, a metadata store that
does not respond. While a request waits, the server also looks for outages, since the last one that it
noticed may be old.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from rollbook.logservice.messages import Obstacle, ObstacleKind

_NAMED_MAX: Final = 8  # The most names in one sentence.

TimeOf = Callable[[int], str]


class KnownOutages:
    def __init__(self) -> None:
        self._store: Obstacle | None = None
        self._bookies: dict[str, Obstacle] = {}

    def on_store(self, now_us: int, *, answers: bool) -> None:
        if answers:
            self._store = None
        elif self._store is None:
            self._store = Obstacle(
                ObstacleKind.METADATA, "metadata store", now_us, "does not answer"
            )

    def on_bookies(
        self,
        now_us: int,
        *,
        writable: Collection[str],
        read_only: Collection[str] = (),
        silent: Collection[str] = (),
        away: Iterable[str] = (),
    ) -> None:
        """Take note of the state of the bookies. `away`: bookies of the cluster that are not registered. A
        bookie that was an obstacle before, and is in no argument now, also counts as not registered.
        """
        found = dict.fromkeys((*self._bookies, *away), "is not registered")
        found |= dict.fromkeys(read_only, "is read-only")
        for name in writable:
            found.pop(name, None)
        found |= dict.fromkeys(silent, "does not answer")
        self._bookies = {name: self._kept(name, why, now_us) for name, why in found.items()}

    def on_left(self, now_us: int, names: Iterable[str]) -> None:
        for name in names:
            self._bookies[name] = self._kept(name, "is not registered", now_us)

    def _kept(self, name: str, why: str, now_us: int) -> Obstacle:
        known = self._bookies.get(name)
        since_us = known.since_us if known is not None else now_us
        return Obstacle(ObstacleKind.BOOKIE, name, since_us, why)

    @property
    def found(self) -> tuple[Obstacle, ...]:
        store = () if self._store is None else (self._store,)
        return (*store, *(self._bookies[name] for name in sorted(self._bookies)))


def cause_in_words(obstacles: Iterable[Obstacle], time_of: TimeOf) -> str:
    """`the metadata store does not answer (since …); bookies bk-2, bk-3 are …`; empty if nothing is unavailable."""
    parts: list[str] = []
    by_reason: dict[str, list[Obstacle]] = {}
    for each in obstacles:
        if each.kind is ObstacleKind.METADATA:
            parts.append(f"the metadata store {each.why} (since {time_of(each.since_us)})")
        else:
            by_reason.setdefault(each.why, []).append(each)
    for why, some in by_reason.items():
        since = time_of(min(each.since_us for each in some))
        parts.append(f"{_names(some)} {_plural(why) if len(some) > 1 else why} (since {since})")
    return "; ".join(parts)


def advice_on(obstacles: Iterable[Obstacle]) -> str:
    """The next step; empty if nothing is known to be unavailable."""
    steps: list[str] = []
    obstacles = tuple(obstacles)
    if any(each.kind is ObstacleKind.METADATA for each in obstacles):
        steps.append("bring the metadata store back")
    bookies = [each for each in obstacles if each.kind is ObstacleKind.BOOKIE]
    full = [each for each in bookies if each.why == "is read-only"]
    gone = [each for each in bookies if each not in full]
    if gone:
        steps.append(f"start {_names(gone)}, or find out why the network does not reach them")
    if full:
        steps.append(f"make room on {_names(full)}")
    return "; ".join(steps)


def _names(some: list[Obstacle]) -> str:
    names = ", ".join(each.name for each in some[:_NAMED_MAX])
    more = f" and {len(some) - _NAMED_MAX} more" if len(some) > _NAMED_MAX else ""
    return f"{'bookies' if len(some) > 1 else 'bookie'} {names}{more}"


def _plural(why: str) -> str:
    return why.replace("is ", "are ", 1).replace("does ", "do ", 1)

"""Keeps the heads and tails of the logs of a selection. Servers report changes, so that a trigger does not have to
make requests.

The reports of servers do not open logs. In two cases a request is needed. A log that no server reports at the
moment may be moving between servers; it counts as deleted only if a server says so. The tail of a log whose owner
died may be higher than the known tail, and only the next owner finds it.
"""

import re
import time
from collections.abc import Iterable
from typing import Final

from rollbook.api.client.sync import SyncTailsWatch
from rollbook.api.spark.core.options import Selection
from rollbook.api.spark.core.stream_offsets import Points, TailPoint, moved
from rollbook.api.spark.shared_client import ServerChannel
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import LogDeleted, NoSuchLog

# Seconds between two look-ups of the owner of a log whose tail may be higher.
_INEXACT_S: Final = 10.0
_ASKED_MAX: Final = 20  # The maximum number of requests in one trigger for either case.
# Matches a literal namespace at the start of a pattern.
_NAMESPACE: Final = re.compile(r"[a-z0-9_-]+/(?![?*{])")
_LITERAL: Final = re.compile(r"\\.|\[\^?\]?[^]]*\]")  # Matches an escaped character, or a class.
_GROUP: Final = re.compile(r"\([^()]*\)")


def namespace_of(pattern: str) -> str:
    """Returns the namespace of all matching logs, with a slash, or an empty string if they may be in several."""
    found = _NAMESPACE.match(pattern)
    rest, shorter = "", _LITERAL.sub("", pattern)
    while rest != shorter:
        rest, shorter = shorter, _GROUP.sub("", shorter)
    return found[0] if found and "|" not in rest else ""


class SelectionTails:
    """The known tails of a selection in one process. If the watch is still open, the client closes it."""

    def __init__(self, channel: ServerChannel, selection: Selection) -> None:
        self._channel, self._selection = channel, selection
        self._watch: SyncTailsWatch | None = None
        self._known: dict[str, TailPoint] = {}
        # For each log whose tail may be higher: the time of the last request, or since when this is known.
        self._inexact: dict[str, float] = {}

    def ask(self) -> dict[str, TailPoint]:
        """Returns the tails of all existing logs of the selection, which cover every append that was
        acknowledged before the call.
        """
        self.close()
        watch = self._watch = self._opened()
        self._known, self._inexact = {}, {}
        self._take(self._channel.patiently(watch.ready).values(), ())
        missing = [name for name in self._selection.names if name not in self._known]
        self._ask_for([*missing, *self._inexact])
        return dict(self._known)

    def wait(self, known: Points, wait_s: float) -> dict[str, TailPoint]:
        """Returns the tails as soon as a log has more records than `known`, or a log appears or disappears,
        but after `wait_s` at the latest.
        """
        if self._watch is None:
            return self.ask()
        due_s = time.monotonic() + wait_s
        self._take_news(self._watch, 0)
        while not moved(known, self._known) and (left_s := due_s - time.monotonic()) > 0:
            self._take_news(self._watch, left_s)
        missing = [name for name in known if name not in self._known]
        self._ask_for([*missing[:_ASKED_MAX], *self._stale()])
        unheard = {name: TailPoint("", 0, known[name].next) for name in missing[_ASKED_MAX:]}
        return {**unheard, **self._known}

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _opened(self) -> SyncTailsWatch:
        selection, client = self._selection, self._channel.client
        if selection.names:
            return client.tails(selection.names)
        if selection.prefix:
            return client.tails(prefix=selection.prefix)
        prefix = namespace_of(selection.pattern)
        return client.tails(prefix=prefix) if prefix else client.tails()

    def _take_news(self, watch: SyncTailsWatch, wait_s: float) -> None:
        if (news := watch.next(wait_s)) is not None:
            self._take(news.tails, news.gone)

    def _take(self, tails: Iterable[messages.TailOfLog], gone: Iterable[LogName]) -> None:
        for log in gone:
            self._known.pop(str(log), None)
            self._inexact.pop(str(log), None)
        for tail in tails:
            name = str(tail.log)
            if not self._selection.covers(name):
                continue
            self._known[name] = TailPoint.of(tail)
            if tail.is_exact:
                self._inexact.pop(name, None)
            else:
                self._inexact.setdefault(name, time.monotonic())

    def _stale(self) -> list[str]:
        """Returns the logs whose owners must be looked up again."""
        before_s = time.monotonic() - _INEXACT_S
        return [name for name, at_s in self._inexact.items() if at_s < before_s][:_ASKED_MAX]

    def _ask_for(self, names: Iterable[str]) -> None:
        """Requests the tails from the logs' owners, which opens the logs."""
        for name in names:
            try:
                self._known[name] = TailPoint.of(self._channel.tail_of(LogName.parse(name)))
            except (NoSuchLog, LogDeleted):
                self._known.pop(name, None)
                self._inexact.pop(name, None)
                continue
            if name in self._inexact:
                self._inexact[name] = time.monotonic()

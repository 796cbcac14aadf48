"""Where the logs of a selection begin and end."""

import time
from collections.abc import Mapping
from typing import Final, Protocol

from rollbook.api.spark.channel import Channel
from rollbook.api.spark.core.options import Selection
from rollbook.api.spark.core.progress import Tail
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import LogDeleted, NoSuchLog

_POLL_S: Final = 0.05


class Tails(Protocol):
    def ask(self) -> dict[str, Tail]:
        """Of every log of the selection, now. A log that is named and does not exist is left out."""

    def wait(self, beyond: Mapping[str, int], wait_s: float) -> dict[str, Tail]:
        """The same as soon as a log has records beyond, or another log appears or goes; after `wait_s` at the latest."""


class AskedTails:
    """Asks for them log by log."""

    def __init__(self, channel: Channel, selection: Selection) -> None:
        self._channel, self._selection = channel, selection

    def ask(self) -> dict[str, Tail]:
        found: dict[str, Tail] = {}
        for name in self._names():
            try:
                told = self._channel.tail_of(LogName.parse(name))
            except (NoSuchLog, LogDeleted):
                continue
            found[name] = Tail(told.uid, told.head, told.tail, told.is_sealed)
        return found

    def wait(self, beyond: Mapping[str, int], wait_s: float) -> dict[str, Tail]:
        due_s = time.monotonic() + wait_s
        while True:
            found = self.ask()
            has_news = found.keys() != beyond.keys() or any(
                tail.tail > beyond[name] for name, tail in found.items()
            )
            if has_news or time.monotonic() >= due_s:
                return found
            time.sleep(min(_POLL_S, max(due_s - time.monotonic(), 0)))

    def _names(self) -> list[str]:
        selection = self._selection
        if selection.names:
            return list(selection.names)
        namespace, _, prefix = selection.prefix.partition("/")
        names = self._channel.patiently(lambda: list(self._channel.client.logs(namespace, prefix)))
        return [str(name) for name in names if selection.covers(str(name))]


def tails_of(channel: Channel, selection: Selection) -> Tails:
    return AskedTails(channel, selection)

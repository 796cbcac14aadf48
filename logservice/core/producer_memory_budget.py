"""One memory budget for the producers that all logs of a server remember.

The memory of each log is bounded, but the total of thousands of full logs would be too large. When all logs take more
than the server's budget, the log that takes most forgets half, beginning with the producers unused the longest. This
is repeated until an eighth of the budget is free. So a log with few producers loses none to a log that has many
(LS11).
"""

import heapq
from typing import Final

from rollbook.logservice.core.producers import Producers

BYTES_MAX: Final = 128 * 1024 * 1024
# An eighth of the budget is freed each time. Larger: less is forgotten each time, but more often.
_FREED: Final = 8


class ProducerMemory:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._logs: dict[Producers, None] = {}  # In the order in which they were added.

    def add(self, producers: Producers) -> None:
        """Count this log's producers from now on, until `remove`."""
        self._logs[producers] = None
        producers.on_grown = self._on_grown
        self._on_grown(producers.bytes)

    def remove(self, producers: Producers) -> None:
        """Stop counting this log's producers. Idempotent."""
        if producers in self._logs:
            del self._logs[producers]
            producers.on_grown = lambda _: None
            self.bytes -= producers.bytes

    def _on_grown(self, grown: int) -> None:
        self.bytes += grown
        if grown > 0 and self.bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        wanted = self._bytes_max - self._bytes_max // _FREED
        logs = list(self._logs)
        largest = [(-each.bytes, number) for number, each in enumerate(logs)]
        heapq.heapify(largest)
        while self.bytes > wanted and largest:
            bytes_before, number = heapq.heappop(largest)
            producers = logs[number]
            producers.forget_half()
            # A log that has freed nothing has a single producer, which stays.
            if producers.bytes < -bytes_before:
                heapq.heappush(largest, (-producers.bytes, number))

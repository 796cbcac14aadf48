"""Whether only one client adds: then its writes need not wait for others.

A write that waits one turn of the loop includes the adds of other connections that arrive in that
turn. For a lone writer nothing else arrives. If there are several writers, writing at once would give
each of them a sync of its own, for which the others would have to wait.
"""


class LoneWriter:
    def __init__(self, chunks_min: int) -> None:
        """`chunks_min`: chunks in a row from one source after which that source counts as alone."""
        self._chunks_min = chunks_min
        self._source: object = None
        self._chunks = 0

    def on_adds(self, source: object) -> None:
        """Notes a chunk of adds from this source."""
        if source == self._source:
            self._chunks += 1
        else:
            self._source, self._chunks = source, 1

    def on_gone(self, source: object) -> None:
        """Forgets a source that has closed."""
        if source == self._source:
            self._source, self._chunks = None, 0

    @property
    def is_alone(self) -> bool:
        return self._chunks >= self._chunks_min

"""Notices when only one client adds, because its writes then need not wait for others.

A write that waits for one turn of the loop includes the adds of other connections that arrive in
that turn. If there is a lone writer, no other adds arrive. If several writers did not wait, each of
them would get a sync of its own, and the others would have to wait for it.
"""


class LoneWriter:
    def __init__(self, chunks_min: int) -> None:
        """`chunks_min` is the number of consecutive chunks after which their source counts as
        alone."""
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

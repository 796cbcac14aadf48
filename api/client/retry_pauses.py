"""The pause before a failed attempt is repeated; `core/retries_and_outcomes.py` decides whether it is
repeated."""

import random
from typing import Final

from rollbook.api.client.config import LogClientConfig
from rollbook.proto.errors import RollbookError, retry_after_ms

_chance: Final = random.Random()


class Pauses:
    """Pauses of random length (full jitter), so that clients that failed together do not retry
    together."""

    def __init__(self, config: LogClientConfig) -> None:
        self._config = config
        self._attempts = 0

    def reset(self) -> None:
        self._attempts = 0

    def next_s(self, error: RollbookError, *, is_known: bool) -> float:
        """`is_known` says that the server to ask is known; then the first few retries in a row do
        not wait."""
        self._attempts += 1
        if is_known and self._attempts <= 3:
            return 0.0
        longest = self._config.retry_pause_s_min * 2 ** min(self._attempts, 16)
        pause = _chance.uniform(0, min(longest, self._config.retry_pause_s_max))
        return max(pause, retry_after_ms(error) / 1000)

"""When an attempt that failed is worth another one, and after which pause."""

import random
from typing import Final

from rollbook.api.client.config import LogClientConfig
from rollbook.proto.errors import (
    Outcome,
    OutcomeUnknown,
    OwnerFenced,
    RollbookError,
    retry_after_ms,
)

_chance: Final = random.Random()


def may_retry(error: RollbookError) -> bool:
    """Of what may be repeated without harm: an append with its producer, a question."""
    return error.retryable or isinstance(error, OutcomeUnknown | OwnerFenced)


class Pauses:
    """Full jitter, so that clients that failed together do not come back together."""

    def __init__(self, config: LogClientConfig) -> None:
        self._config = config
        self._attempts = 0

    def reset(self) -> None:
        self._attempts = 0

    def next_s(self, error: RollbookError, *, is_known: bool) -> float:
        """`is_known`: it is known whom to ask now; taken at its word a few times in a row."""
        self._attempts += 1
        if is_known and self._attempts <= 3:
            return 0.0
        longest = self._config.retry_pause_s_min * 2 ** min(self._attempts, 16)
        pause = _chance.uniform(0, min(longest, self._config.retry_pause_s_max))
        return max(pause, retry_after_ms(error) / 1000)


def in_doubt(error: RollbookError) -> RollbookError:
    """An earlier attempt may have taken effect, whatever this one says."""
    if error.outcome is Outcome.NOT_APPLIED:
        error.outcome = Outcome.UNKNOWN
        error.retryable = False
    return error


def again(error: RollbookError, outcome: Outcome) -> RollbookError:
    """The same for somebody else: each gathers a traceback of its own."""
    copy = error.copy()
    copy.outcome = outcome
    copy.retryable = error.retryable and outcome is Outcome.NOT_APPLIED
    return copy

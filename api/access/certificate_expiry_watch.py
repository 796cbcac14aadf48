"""Reports when a server's certificate expires: as a metric, and in warnings 30, 7 and 1 days before the end."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.certificate_expiry import certificate_end_s
from rollbook.proto.stats import Gauge, gauge

logger = structlog.get_logger()

_DAY_S: Final = 86_400
_WARNED_DAYS: Final = (1, 7, 30)
_LOOK_S: Final = 3600.0


@dataclass(slots=True)
class TlsStats:
    expires: Gauge = gauge(
        "certificate_expires_seconds", "When the server's certificate expires (Unix time)."
    )


class CertificateWatch:
    def __init__(self, path: str, wall_s: Callable[[], float] = time.time) -> None:
        """Raises `BadConfig`."""
        self._path, self._wall_s = path, wall_s
        self._end_s = certificate_end_s(path)
        # The last warning: when the certificate expires, and which of `_WARNED_DAYS` was reached.
        self._warned: tuple[float, int] | None = None
        self.stats: Final = TlsStats()
        self.stats.expires = lambda: self._end_s

    def look(self) -> None:
        """Reads the certificate again, and logs each warning once."""
        try:
            self._end_s = certificate_end_s(self._path)
        except BadConfig as error:
            logger.warning("certificate_not_read", reason=str(error))
        left_s = self._end_s - self._wall_s()
        days = next((days for days in _WARNED_DAYS if left_s <= days * _DAY_S), None)
        if days is not None and self._warned != (self._end_s, days):
            self._warned = (self._end_s, days)
            logger.warning(
                "certificate_expires", path=self._path, days_left=round(left_s / _DAY_S, 1)
            )

    async def watch(self) -> None:
        """Checks the certificate every hour, until the task is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

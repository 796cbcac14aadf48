"""Reads log servers' counters every two seconds, for the charts of the overview (DB7).

Counters of log servers in this process are read directly; those of other servers are read from their /metrics.
A token is sent only with TLS, or to this machine.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final, Never

from rollbook.api.dashboard.core.samples import INTERVAL_S, Counted, Samples
from rollbook.api.dashboard.http_fetch import fetch
from rollbook.proto.errors import RollbookError
from rollbook.proto.runtime.prometheus_text import Metrics

_AT_ONCE: Final = 8

Facts = Mapping[str, Any]


class Sampler:
    def __init__(
        self,
        servers: Callable[[], Awaitable[Sequence[Facts]]],
        own: Mapping[str, Metrics],
        *,
        authorities: str = "",
        tls_name: str = "",
        token: Callable[[], str] = lambda: "",
    ) -> None:
        """`servers` returns the registered log servers. `own`: metrics of the log servers in this process, by name.

        `token` returns the token for /metrics. `tls_name`: the name in the servers' certificates; empty: each
        server's host name.
        """
        self.samples = Samples()
        self._servers = servers
        self._own = own
        self._token = token
        self._authorities, self._tls_name = authorities, tls_name
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> Never:
        while True:
            await self.sample()
            await asyncio.sleep(INTERVAL_S)

    async def sample(self) -> None:
        try:
            rows = await self._servers()
        except RollbookError:
            rows = ()  # The metrics of this process are read below anyway.
        others = [row for row in rows if row["name"] not in self._own]
        answers = await asyncio.gather(*map(self._read, others))
        found = {name: await _counted(metrics) for name, metrics in self._own.items()}
        problems = []
        for row, answer in zip(others, answers, strict=True):
            if isinstance(answer, Counted):
                found[row["server_id"]] = answer
            else:
                problems.append(f"{row['name']}: {answer}")
        self.samples.problem = "; ".join(problems[:3])
        self.samples.add(time.time(), found)

    async def _read(self, row: Facts) -> Counted | str:
        """The counters of a log server, or the reason why they are not known."""
        if not row["http"]:
            return "it has no /metrics (--rest)"
        async with self._turns:
            try:
                text = await asyncio.to_thread(
                    fetch,
                    row["http"],
                    "/metrics",
                    self._token(),
                    self._authorities,
                    self._tls_name,
                )
            except (OSError, HTTPException, ValueError, RollbookError) as error:
                return f"{type(error).__name__}: {error}"
        return Counted.parse(text)


async def _counted(metrics: Metrics) -> Counted:
    return Counted.parse((await metrics.page()).decode())

"""What one log server shows of itself."""

import asyncio
from contextlib import AsyncExitStack

from rollbook import __version__
from rollbook.api.access.certificate_watch import CertificateWatch
from rollbook.logservice.config import LogServerConfig
from rollbook.logservice.service import Service
from rollbook.logservice.stats import PART
from rollbook.proto.runtime.metrics import Metrics


def metrics_of(stack: AsyncExitStack, service: Service, config: LogServerConfig) -> Metrics:
    """The stack ends what watches. Raises `BadConfig`."""
    metrics = Metrics()
    metrics.add(PART, service.stats)
    metrics.add_process(__version__)
    if config.tls_certificate:
        watch = CertificateWatch(config.tls_certificate)
        metrics.add("tls", watch.stats)
        watching = asyncio.get_running_loop().create_task(watch.watch())
        stack.push_async_callback(_end, watching)
    return metrics


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

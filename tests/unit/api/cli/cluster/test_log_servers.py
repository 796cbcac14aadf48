"""The commands that list and drain log servers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollbook.api.cli.cluster.log_servers import drain_server
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.main import exit_code
from rollbook.proto.errors import QuorumTimeout


def test_drain_wait_timeout_names_remaining_logs(capsys: pytest.CaptureFixture[str]) -> None:
    class Client:
        async def drain(self, server: str, *, resume: bool = False) -> int:
            return 3

    class Access(LogAccess):
        def run(self, work: Callable[[Any], Awaitable[Any]], log: str = "") -> Any:
            return asyncio.run(work(Client()))  # type: ignore[arg-type]  # It is a coroutine.

    access = Access("a:1", None, None, None, None, 0.01)
    drain_server(access, "log-2", resume=False, wait=False, output="raw")
    with pytest.raises(QuorumTimeout, match="log-2 still owns 3 logs") as caught:
        drain_server(access, "log-2", resume=False, wait=True, output="raw")
    assert exit_code(caught.value) == 5
    assert "drain log-2 --server a:1 --wait" in caught.value.next_step
    assert capsys.readouterr().out == "3\n3\n"

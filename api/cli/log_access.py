"""How commands come to log servers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rollbook.api.client.client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.proto.errors import (
    BadConfig,
    Guarded,
    LogDeleted,
    NoSuchLog,
    RollbookError,
    ServerUnreachable,
    Truncated,
    WriterRequired,
)

T = TypeVar("T")

_TOKEN_BYTES_MAX: Final = 4096
_CONNECT_S: Final = 1.5  # Nobody who types waits longer to hear that there is no server.


@dataclass(frozen=True)
class LogAccess:
    server: str
    token_file: str | None
    tls_authorities: str | None
    tls_certificate: str | None
    tls_key: str | None
    timeout_s: float

    def run(self, work: Callable[[Client], Awaitable[T]], log: str = "") -> T:
        with self.advising(log):
            return asyncio.run(self.use(work))

    async def use(self, work: Callable[[Client], Awaitable[T]], **settings: Any) -> T:
        """`settings` are those of the client that this work needs."""
        url = self.server if "://" in self.server else f"log://{self.server}"
        async with connect(
            url,
            LogClientConfig(
                timeout_s=self.timeout_s, connect_s=min(_CONNECT_S, self.timeout_s), **settings
            ),
            token=self._token(),
            authorities=self.tls_authorities or "",
            certificate=self.tls_certificate or "",
            key=self.tls_key or "",
        ) as client:
            return await work(client)

    def _token(self) -> str:
        if not self.token_file:
            return ""
        try:
            with open(self.token_file, encoding="utf-8") as file:
                return file.readline(_TOKEN_BYTES_MAX + 1).strip()  # As servers read it.
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"cannot read the token: {error}") from error

    @contextmanager
    def advising(self, log: str = "") -> Iterator[None]:
        """What to type next, with the flags that were given."""
        flags = f" --server {self.server}"
        steps: dict[type[RollbookError], str] = {
            LogDeleted: "take another name; this one is free when its time of grace is over",
            NoSuchLog: f"rollbook log create {log}{flags}",
            Truncated: f"rollbook log read {log} --from earliest{flags}",
            Guarded: f"rollbook explain {log}{flags}",
        }
        try:
            yield
        except RollbookError as error:
            if isinstance(error, ServerUnreachable):
                error.next_step = "start one with `rollbook dev`, or say where one is: --server URL"
            if isinstance(error, WriterRequired):
                error.next_step = "say --holder NAME; whoever wrote before cannot any more"
            if not error.next_step:
                error.next_step = next((s for e, s in steps.items() if isinstance(error, e)), "")
            raise

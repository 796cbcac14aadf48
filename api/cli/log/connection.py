"""Connects commands to log servers."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from rollbook.api.client.async_client import Client, connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.connect_errors import ConnectProblem, obstacle_of
from rollbook.api.client.token_file import token_of_file
from rollbook.logservice.messages import Outage
from rollbook.proto.errors import (
    BeyondTail,
    Guarded,
    Interrupted,
    LogDeleted,
    LogExists,
    NoSuchCursor,
    NoSuchLog,
    NoSuchServer,
    OffsetMismatch,
    RollbookError,
    ServerUnreachable,
    Truncated,
    WriterRequired,
)
from rollbook.proto.printable import harmless

T = TypeVar("T")

_NAMED: Final = (
    "context",
    "server",
    "token_file",
    "tls_authorities",
    "tls_certificate",
    "tls_key",
    "tls_name",
)
_CONNECT_S: Final = 1.5  # The time after which a command reports that no server can be reached.


class _WaitNotice:
    """Reports on stderr what a command is waiting for."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._said = ""

    def tell(self, outage: Outage | None) -> None:
        if outage is None:
            text = f"no log server answers at {self._server}"
        elif outage.obstacles:
            text = f"{outage.cause} · {outage.next_step}"
        else:
            return  # The reason for waiting is unknown.
        if text != self._said:
            self._said = text
            click.echo(f"waiting: {harmless(text)}", err=True)


@dataclass(frozen=True)
class LogAccess:
    server: str
    token_file: str | None
    tls_authorities: str | None
    tls_certificate: str | None
    tls_key: str | None
    timeout_s: float
    insecure: bool = False
    tls_name: str | None = None
    context: str = ""
    of_context: frozenset[str] = frozenset()  # The fields that the context set.

    def run(self, work: Callable[[Client], Awaitable[T]], log: str = "") -> T:
        with self.advising(log):
            return asyncio.run(self.use(work))

    async def use(self, work: Callable[[Client], Awaitable[T]], **settings: Any) -> T:
        """Runs the work with a client. `settings` are client settings that the work needs."""
        client = connect(
            self.server,
            LogClientConfig(
                timeout_s=self.timeout_s, connect_s=min(_CONNECT_S, self.timeout_s), **settings
            ),
            token=self.token(),
            authorities=self.tls_authorities or "",
            certificate=self.tls_certificate or "",
            key=self.tls_key or "",
            tls_name=self.tls_name or "",
            insecure=self.insecure,
        )
        client.owners.outages.on_look = _WaitNotice(self.server).tell
        async with client:
            try:
                return await work(client)
            except asyncio.CancelledError:
                if client.has_cancelled_change:
                    raise Interrupted("interrupted before the server responded") from None
                raise

    def token(self) -> str:
        return token_of_file(self.token_file or "")

    @property
    def flags(self) -> str:
        """Returns the flags that the user gave. If a context is used, they name the context and not its server,
        because a command accepts only one of the two.
        """
        flags = ""
        for name in _NAMED:
            value = getattr(self, name)
            if value and name not in self.of_context:
                flags += f" --{name.replace('_', '-')} {shlex.quote(value)}"
        is_said = self.insecure and "insecure" not in self.of_context
        return f"{flags} --insecure" if is_said else flags

    def _way_to_reach(self, obstacle: ConnectProblem) -> str:
        scheme, _, where = self.server.rpartition("://")
        match obstacle:
            case ConnectProblem.NOT_BELIEVED:
                return (
                    "use --tls-authorities FILE with the CAs that signed the server's certificate"
                )
            case ConnectProblem.NO_TLS:
                return self._other_server(f"log://{where}")
            case ConnectProblem.HTTP:
                url = f"{scheme or 'log'}://HOST:7400"
                return f"{self._other_server(url)}: that port is for HTTP"
            case ConnectProblem.HUNG_UP if self.server.startswith("log+tls://"):
                return "use --tls-certificate FILE if the server requests a certificate"
            case ConnectProblem.HUNG_UP:
                return f"{self._other_server(f'log+tls://{where}')}, if the server uses TLS"
            case ConnectProblem.UNKNOWN_HOST:
                return f"check the host name, or name another server: {self._other_server('URL')}"
            case _ if self.context:
                there = f"start one at {self.server}, where the context {self.context} says it is"
                return f"{there}, or say where one is: {self._other_server('URL')}"
            case ConnectProblem.REFUSED:
                return "start one with `rollbook dev`, or check host and port, or name a server: --server URL"
            case ConnectProblem.SILENCE:
                return "start one with `rollbook dev`, or name a server: --server URL"

    def _other_server(self, url: str) -> str:
        """Returns the flags that select another server. A typed `--server` replaces the current context and all
        its values, so the other values of the context are repeated as flags.
        """
        flags = f"--server {url}"
        for name in _NAMED:
            is_unused = name.startswith("tls_") and url.startswith("log://")
            if name in self.of_context and name != "server" and not is_unused:
                flags += f" --{name.replace('_', '-')} {shlex.quote(getattr(self, name))}"
        if "insecure" in self.of_context:
            flags += " --insecure"
        return f"{flags}, in place of the context {self.context}" if self.context else flags

    @contextmanager
    def advising(self, log: str = "") -> Iterator[None]:
        """Adds a next step to errors: the command to run, with the flags that the user gave."""
        flags = self.flags
        steps: dict[type[RollbookError], str] = {
            LogDeleted: f"rollbook log undelete {log}{flags}, or rollbook log create {log}{flags} for a new one",
            NoSuchLog: f"rollbook log create {log}{flags}" if log else f"rollbook log ls{flags}",
            NoSuchCursor: f"rollbook cursor ls {log}{flags}",
            NoSuchServer: f"rollbook cluster servers{flags}",
            Truncated: f"rollbook log read {log} --from earliest{flags}",
            BeyondTail: f"rollbook log show {log}{flags}",
            OffsetMismatch: f"rollbook log show {log}{flags}",
            Guarded: f"rollbook explain {log}{flags}",
            LogExists: "rollbook apply FILE, which changes existing logs",
        }
        try:
            yield
        except RollbookError as error:
            if isinstance(error, ServerUnreachable):
                error.next_step = self._way_to_reach(obstacle_of(error.message))
            if isinstance(error, WriterRequired):
                error.next_step = "use --holder NAME, which fences earlier writers"
            if not error.next_step:
                error.next_step = next((s for e, s in steps.items() if isinstance(error, e)), "")
            raise

"""Sends callbacks to allowed targets only (CP1 to CP4 in DESIGN.md; `callback_target.py` has the checks).

URL ──► parse_target ──► its host is in `callback_hosts` ──► resolved once ──► each address is checked
                                                                                    │
                  one POST, no redirect, 10 s in all ◄── connected to that very address
"""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from rollbook.api.rest.callback_target import (
    CallbackTarget,
    check_hosts,
    parse_target,
    problem_of_address,
    require_allowed,
)
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.runtime.tls import trusting_context
from rollbook.recovery.core.callback_queue import DeliveryAnswer

DEADLINE_S: Final = 10.0
_HEAD_MAX: Final = 8 * 1024
_INTERIM_MAX: Final = 4  # 1xx responses that may precede the final one.
_READ_MAX: Final = 64 * 1024  # Bytes of a response body that are read and ignored.
_READ_S: Final = 0.3
_RESOLVERS: Final = 16
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
_HEADER: Final = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class CallbackPost:
    """Sends callbacks. `post` returns errors as a `problem` instead of raising them."""

    def __init__(
        self,
        hosts: Collection[str],
        ca_file: str = "",
        *,
        resolve: Resolve | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`ca_file`: the CAs of receivers' certificates, instead of the system's. Raises `BadConfig`."""
        check_hosts(hosts)
        self._hosts = tuple(hosts)
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(_RESOLVERS, "callback-dns")
        self._resolving: dict[str, asyncio.Future[Sequence[str]]] = {}
        self._resolve = resolve or self._ask_the_system
        # Made on first use: reading the system's CAs takes a while.
        self._tls: ssl.SSLContext | None = None
        if ca_file:
            try:
                self._tls = trusting_context(ca_file)
            except OSError as error:
                raise BadConfig(
                    f"cannot read the certificates in {ca_file}: {describe_error(error)}",
                    settings=("callback_ca_file",),
                ) from error

    def require_allowed(self, url: str) -> CallbackTarget:
        """Raises `InvalidRequest`."""
        target = parse_target(url)
        require_allowed(target, self._hosts)
        return target

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAnswer:
        try:
            target = self.require_allowed(url)
            async with asyncio.timeout(self._deadline_s):
                return await self._post(target, headers, body)
        except TimeoutError:
            return DeliveryAnswer(problem=f"no complete response within {self._deadline_s:g} s")
        except InvalidRequest as error:
            return DeliveryAnswer(problem=error.message)
        except ssl.SSLCertVerificationError as error:  # This error is a `ValueError`, too.
            return DeliveryAnswer(
                problem=f"its certificate is not accepted: {error.verify_message}"
            )
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return DeliveryAnswer(problem="the response is not HTTP/1.1")
        except OSError as error:
            return DeliveryAnswer(problem=describe_error(error))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _post(
        self, target: CallbackTarget, headers: Mapping[str, str], body: bytes
    ) -> DeliveryAnswer:
        request = _request(target, headers, body)
        address = await self._address_of(target)
        is_tls = target.scheme == "https"
        if is_tls and self._tls is None:
            self._tls = trusting_context()
        reader, writer = await asyncio.open_connection(
            address,
            target.port,
            ssl=self._tls if is_tls else None,
            server_hostname=target.name if is_tls else None,
            limit=_HEAD_MAX,
        )
        try:
            writer.write(request)
            await writer.drain()
            status = await _status_of(reader)
            await _read_politely(reader)
        finally:
            writer.transport.abort()
        if 300 <= status < 400:
            return DeliveryAnswer(status, f"it answered {status}, and redirects are not followed")
        return DeliveryAnswer(status, None if 200 <= status < 300 else f"it answered {status}")

    async def _address_of(self, target: CallbackTarget) -> str:
        """Resolves the host once, so that the checked address is the one that is connected to."""
        try:
            ipaddress.ip_address(target.name)
            found: Sequence[str] = [target.name]
        except ValueError:
            found = await self._resolve(target.name, target.port)
        for each in found:
            if problem := problem_of_address(target, each):
                raise InvalidRequest(problem)
        if not found:
            raise InvalidRequest(f"{target.name} has no address")
        return found[0]

    async def _ask_the_system(self, host: str, port: int) -> Sequence[str]:
        """Resolves a host. Concurrent look-ups of the same host share one thread, so that a host that does not resolve
        blocks only one."""
        loop = asyncio.get_running_loop()
        if (asked := self._resolving.get(host)) is None:
            asked = self._resolving[host] = loop.run_in_executor(
                self._threads, partial(_addresses_of, host, port)
            )
            asked.add_done_callback(lambda _: self._resolving.pop(host, None))
        return await asyncio.shield(asked)


def _addresses_of(host: str, port: int) -> list[str]:
    import socket

    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _request(target: CallbackTarget, headers: Mapping[str, str], body: bytes) -> bytes:
    """Raises `InvalidRequest` if a header's value has a line end, or another character that is not allowed in it."""
    lines = [f"POST {target.path} HTTP/1.1", f"host: {target.host_header}"]
    for name, value in headers.items():
        if not _HEADER.fullmatch(value):
            raise InvalidRequest(f"{name} cannot be sent in a header")
        lines.append(f"{name}: {value}")
    lines += [
        f"content-length: {len(body)}",
        "user-agent: rollbook",
        "accept: */*",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def _status_of(reader: asyncio.StreamReader) -> int:
    """Raises `ValueError` for invalid HTTP."""
    for _ in range(_INTERIM_MAX + 1):
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            raise ValueError(head[:40])
        if (status := int(found[1])) >= 200:
            return status
    raise ValueError("only interim answers")


async def _read_politely(reader: asyncio.StreamReader) -> None:
    """Reads a part of the body, because some receivers log an error if their response is not read. Errors are
    ignored: only the status counts."""
    left = _READ_MAX
    with suppress(TimeoutError, OSError, ValueError):
        async with asyncio.timeout(_READ_S):
            while left > 0 and (chunk := await reader.read(min(left, 16 * 1024))):
                left -= len(chunk)

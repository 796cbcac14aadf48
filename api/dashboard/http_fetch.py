"""Reads HTTP pages of log servers. `fetch` blocks, so callers run it in a thread.

A token is sent only with TLS, or to this machine.
"""

import http.client
import ssl
from typing import Final
from urllib.parse import urlsplit

from rollbook.proto.client_credential_safety import may_show_token
from rollbook.proto.runtime.tls import trusting_context

_PATIENCE_S: Final = 1.5
_BYTES_MAX: Final = 1024 * 1024


class _NamedHttps(http.client.HTTPConnection):
    """An HTTPS connection to a server at any address. The server's certificate must be for `name`."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=_PATIENCE_S)
        self.default_port = http.client.HTTPS_PORT
        self._context, self._name = context, name

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def fetch(url: str, path: str, token: str, authorities: str, tls_name: str) -> str:
    """Reads one page. `url`: the server's URL. `tls_name`: the name in the server's certificate; empty: the host name.

    Raises `OSError`, `HTTPException`, `ValueError`, `RollbookError`.
    """
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    connection: http.client.HTTPConnection
    if is_tls:
        context = trusting_context(authorities)
        connection = _NamedHttps(host, parts.port, context, tls_name or host)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=_PATIENCE_S)
    headers = {}
    if token and may_show_token(host, uses_tls=is_tls, insecure=False):
        headers["authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{path} returned the status {answer.status}")
        return answer.read(_BYTES_MAX).decode("utf-8", "replace")
    finally:
        connection.close()

"""Parses the URLs of log servers: `log://host:port,host:port`.

`log+tls://…` speaks TLS; `host:port` alone does not. The default port is 7400. One server is
enough: it names the others.
"""

from dataclasses import dataclass

from rollbook.api.rpc_methods import DEFAULT_PORT
from rollbook.proto.addresses import parse_address
from rollbook.proto.errors import BadConfig


@dataclass(frozen=True, slots=True)
class LogUrl:
    servers: tuple[str, ...]
    uses_tls: bool


def parse_log_url(text: str) -> LogUrl:
    """Raises `BadConfig`."""
    text = text.strip()
    scheme, _, rest = text.partition("://") if "://" in text else ("log", "", text)
    if scheme in ("http", "https"):
        raise BadConfig(
            f"{text!r} is an HTTP address, not an address of log servers",
            next_step="write log://HOST:7400, with the server's port for logs",
        )
    if scheme not in ("log", "log+tls"):
        raise BadConfig(
            f"{text!r} is not an address of log servers",
            next_step="write for example log://127.0.0.1:7400",
        )
    parts = [part for part in rest.rstrip("/").split(",") if part.strip()]
    if not parts:
        raise BadConfig(f"{text!r} names no server", next_step="write log://host:port")
    found = [parse_address(part, "the log server", default_port=DEFAULT_PORT) for part in parts]
    servers = [
        str(each) if ":" not in each.host else f"[{each.host}]:{each.port}" for each in found
    ]
    return LogUrl(tuple(dict.fromkeys(servers)), scheme == "log+tls")

"""Addresses as people write them: `host`, `host:port`, `[::1]:port`, `:port`.

For a server that listens, `:port` means every IPv4 address of the machine. A server that binds
every address is registered under a name: the configured one, or the host's.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]*))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
_PORT_MAX: Final = 65535
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104  # Refused without TLS or --insecure.


def parse_address(
    text: str, what: str, *, default_host: str = "", default_port: int = -1
) -> Address:
    """Parses an address. `what` is the name of the setting, or a description of the address. Port 0
    means any free port. Raises `BadConfig` if the address is invalid, or if it lacks a part that
    has no default.
    """
    match = _ADDRESS.fullmatch(text.strip())
    host = ((match["v6"] or match["host"]) if match else "") or default_host
    port = int(match["port"] or default_port) if match else -1
    if not host or not 0 <= port <= _PORT_MAX:
        raise BadConfig(
            f"{what} is {text!r}, which is not host:port",
            settings=(what,),
            next_step="write an address such as 127.0.0.1:3181 or [::1]:3181",
        )
    return Address(host, port)


def require_reachable(listens: Iterable[Address], advertised: Address) -> None:
    """Raises `BadConfig` if clients that use the advertised address could not reach this server."""
    places = [each for each in listens if not is_loopback(each.host)]
    if not places and not is_loopback(advertised.host):
        raise BadConfig(
            f"this server would be registered as {advertised}, but only this machine can reach the "
            "addresses on which it listens",
            settings=("listen", "advertise"),
            next_step="use --listen :PORT, which binds every address, or do not advertise another name",
        )


def is_wildcard(host: str) -> bool:
    """Returns whether the host means all addresses of this machine; no client can connect to it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False

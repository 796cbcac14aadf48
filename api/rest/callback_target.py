"""Parses the URLs of callbacks, and refuses those that would reach the internal network (CP1 to CP3 in DESIGN.md).

`callback_post.py` checks the URL before each request, and each address that its host resolves to.
"""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.loopback_addresses import is_loopback

URL_MAX: Final = 2_000
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!$%&'()*+,./0-9:;=@A-Z_a-z~-]*)?(?P<query>\?[!$%&'()*+,./0-9:;=?@A-Z_a-z~-]*)?",
    re.ASCII,
)
_HOST: Final = re.compile(r"(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_EMBEDS_IPV4: Final = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")  # The range that is assigned to networks.
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class CallbackTarget:
    scheme: str
    host: str  # The host as in the URL: an IPv6 address has brackets.
    port: int
    path: str  # The path with its query.

    @property
    def name(self) -> str:
        return self.host.strip("[]")

    @property
    def is_local(self) -> bool:
        """Whether the host is a loopback name or address. Other names that resolve to this machine are refused."""
        return is_loopback(self.name)

    @property
    def origin(self) -> str:
        """The URL's origin, for callers who may not see the rest, which may have a secret."""
        usual = 443 if self.scheme == "https" else 80
        port = "" if self.port == usual else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def host_header(self) -> str:
        return self.origin.partition("://")[2]


def parse_target(url: str) -> CallbackTarget:
    """Raises `InvalidRequest`."""
    scheme, separator, rest = url[: URL_MAX + 1].partition("://")
    host, slash, path = rest.partition("/")
    found = _URL.fullmatch(f"{scheme.lower()}{separator}{host.lower()}{slash}{path}")
    port = int(found["port"]) if found and found["port"] else 0
    if found is None or len(url) > URL_MAX or port > 65_535 or found["port"] == "0":
        raise InvalidRequest(
            f"{url[:80]!r} is not a callback URL: use `https://host[:port]/path?query` of at most "
            f"{URL_MAX} visible ASCII characters, without user and fragment",
            next_step="use, for example, https://hooks.example.com/rollbook",
        )
    target = CallbackTarget(
        found["scheme"],
        found["host"],
        port or (443 if found["scheme"] == "https" else 80),
        (found["path"] or "/") + (found["query"] or ""),
    )
    if target.scheme == "http" and not target.is_local:
        raise InvalidRequest(
            "events would cross the network unencrypted: http is allowed only for this machine",
            next_step="write https:// in front of the host",
        )
    return target


def origin_of(url: str) -> str:
    """The origin of a URL for the audit; an invalid URL is shown truncated."""
    try:
        return parse_target(url).origin
    except InvalidRequest:
        return url[:20]


def check_hosts(hosts: Collection[str]) -> None:
    """Parses the hosts of the setting. Raises `BadConfig`."""
    advice = "use, for example, hooks.example.com, hooks.example.com:8443, 127.0.0.1:9000 or [::1]"
    for host in hosts:
        try:
            target = parse_target(f"https://{host}") if _HOST.fullmatch(host.lower()) else None
        except InvalidRequest:  # The port is invalid.
            target = None
        if target is None:
            problem: str | None = f"{host[:80]!r} is not a host"
        else:
            problem = _problem_of_literal(target)
        if problem:
            raise BadConfig(
                f"callback_hosts: {problem}", settings=("callback_hosts",), next_step=advice
            )


def require_allowed(target: CallbackTarget, hosts: Collection[str]) -> None:
    """Raises `InvalidRequest` unless the setting has the target's host, or its host and port. An address in place of
    a host name must also be an allowed one.
    """
    if problem := _problem_of_literal(target):
        raise InvalidRequest(problem, next_step="use the name of a host with a public address")
    known = [each.lower() for each in hosts]
    if target.host in known or f"{target.host}:{target.port}" in known:
        return
    raise InvalidRequest(
        f"{target.host}:{target.port} is not one of callback_hosts, which are {', '.join(known) or '(none)'}",
        next_step=f'start the recovery servers with callback_hosts = ["{target.host}"] in [recovery] of their files, '
        "or with --callback-hosts",
    )


def _problem_of_literal(target: CallbackTarget) -> str | None:
    """The reason why a literal address is refused; None: it is allowed, or the host is a name."""
    try:
        ipaddress.ip_address(target.name)
    except ValueError:
        return None
    return problem_of_address(target, target.name)


def problem_of_address(target: CallbackTarget, text: str) -> str | None:
    """The reason why this address is refused; None: it is allowed. The address is checked because anybody may own
    the name that was resolved to it."""
    try:
        address: _Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return f"{text[:80]} is not an IP address"
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in _EMBEDS_IPV4):
            return f"{address} embeds an IPv4 address"
        address = address.ipv4_mapped or address
    if target.is_local:
        return None if address.is_loopback else f"{address} is not this machine"
    if address.version == 6 and address not in _UNICAST:
        return f"{target.name} is at {address}, which is not a public address"
    if address.is_global and not address.is_multicast and not address.is_reserved:
        return None
    return f"{target.name} is at {address}, which is not a public address"

"""Parses the URL of a metadata store.

    zk://host1,host2:2181/ledgers?…      a ZooKeeper ensemble; the default port is 2181
    zk+LAYOUT://host1:2181;host2/ledgers  BookKeeper's spelling; LAYOUT is hierarchical,
                                          longhierarchical, flat or null
    sqlite:///absolute/path/metadata.db   the embedded store of one machine
    memory: or memory:NAME                gone with the process

A ZooKeeper URL names the ledgers root, which is the node of BookKeeper's metadata. It is `/ledgers`
by default, and always `/ledgers` in the other stores. Rollbook's own trees are in a node beside the
root: `rollbook` beside a root called `ledgers`, and `rollbook-NAME` beside a root called NAME.

The options of ZooKeeper; all may be left out, and values are percent-encoded where necessary:

    ca=FILE        verify the servers' certificates with these authorities (uses TLS)
    cert=FILE      present this certificate to the servers (uses TLS)
    key=FILE       the key of the certificate, if it is in another file
    key_password=TEXT
    tls=yes        use TLS with the authorities of the machine
    auth=SCHEME:CREDENTIAL      `auth=digest:user:password`
    sasl=MECHANISM:USER:PASSWORD  `sasl=DIGEST-MD5:user:password`, or `sasl=GSSAPI`
"""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self
from urllib.parse import parse_qsl, unquote

from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.formats.paths import DEFAULT_ROOT
from rollbook.proto.metastore.core.request_checks import ROOT, check_path

_ZOOKEEPER_PORT: Final = 2181
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)
_LOGIN: Final = re.compile(r"\A([^/]*//)?.*@", re.DOTALL)
_FORMS: Final = "zk://host,host/ledgers, sqlite:///path or memory:"


class Backend(Enum):
    ZOOKEEPER = "zk"
    SQLITE = "sqlite"
    MEMORY = "memory"


class LayoutHint(Enum):
    """The layout that the scheme names, if it is one of BookKeeper's; otherwise the LAYOUT node decides."""

    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)  # Scheme, credential.
    # Mechanism, user, password.
    sasl: tuple[str, str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MetadataUrl:
    backend: Backend
    place: str  # For ZooKeeper `host:port,host:port`, for SQLite the file, for memory the name.
    ledgers_root: str = DEFAULT_ROOT
    layout: LayoutHint | None = None
    options: ZooKeeperOptions = ZooKeeperOptions()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a URL. Raises `BadConfig`, whose text never repeats the part after a `?`, nor a
        part before an `@`, where URLs of other tools have a login.
        """
        address, _, query = text.partition("?")
        scheme, colon, rest = address.partition(":")
        said = _without_login(address)
        backend, _, layout = scheme.partition("+")
        if colon and backend == "zk" and rest.startswith("//"):
            hosts, slash, path = rest[2:].partition("/")
            return cls(
                Backend.ZOOKEEPER,
                _parse_hosts(hosts, said),
                _parse_root(slash + path, said),
                _parse_layout(layout, said),
                _parse_options(query),
            )
        if query:
            raise BadConfig(f"metadata URL {said}: only zk:// takes options")
        if scheme == "sqlite":
            path = unquote(rest[2:])
            if not rest.startswith("///") or path.endswith("/") or "\0" in path:
                raise BadConfig(
                    f"metadata URL {said}: write sqlite:// and an absolute path of a file",
                    next_step="for example sqlite:///var/lib/rollbook/metadata.db",
                )
            return cls(Backend.SQLITE, path)
        if scheme == "memory" and colon and _NAME.fullmatch(rest):
            return cls(Backend.MEMORY, rest)
        raise BadConfig(f"metadata URL {said[:200]!r} has to be of the form {_FORMS}")

    def __str__(self) -> str:
        """The URL without options, which may hold secrets."""
        match self.backend:
            case Backend.ZOOKEEPER:
                scheme = "zk" if self.layout is None else f"zk+{self.layout.value}"
                hidden = "?…" if self.options != ZooKeeperOptions() else ""
                return f"{scheme}://{self.place}{self.ledgers_root}{hidden}"
            case Backend.SQLITE:
                return f"sqlite://{self.place}"
            case Backend.MEMORY:
                return f"memory:{self.place}"


def shown_url(text: str) -> str:
    """Returns a URL for display, valid or not, without options and logins, since these may hold passwords."""
    address, question, _ = text.partition("?")
    try:
        MetadataUrl.parse(text)
    except BadConfig:
        address = _without_login(address)
    return f"{address}?…" if question else address


def _without_login(address: str) -> str:
    """Returns the address without user and password. A path for SQLite has neither, but may have an `@`."""
    return address if address.startswith("sqlite:") else _LOGIN.sub(r"\1…@", address)


def _parse_hosts(text: str, url: str) -> str:
    hosts = []
    for part in re.split("[,;]", text):
        match = _HOST.fullmatch(part)
        port = int(match[2] or _ZOOKEEPER_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            if "@" in url:  # The part may be from a password, so it is not shown.
                raise BadConfig(
                    f"metadata URL {url}: there must be no user before the hosts",
                    next_step="write zk://host/ledgers?auth=digest:user:password",
                )
            raise BadConfig(
                f"metadata URL {url}: {part!r} is not host or host:port",
                next_step="separate the hosts by commas: zk://host1:2181,host2:2181/ledgers",
            )
        hosts.append(f"{match[1]}:{port}")
    return ",".join(hosts)


def _parse_root(path: str, url: str) -> str:
    root = unquote(path).rstrip("/") or DEFAULT_ROOT
    try:
        check_path(root)
    except InvalidRequest as error:
        raise BadConfig(f"metadata URL {url}: {error.message}") from error
    assert root != ROOT
    return root


def _parse_layout(name: str, url: str) -> LayoutHint | None:
    if name in ("", "null"):
        return None
    try:
        return LayoutHint(name)
    except ValueError:
        known = ", ".join(f"zk+{hint.value}" for hint in LayoutHint)
        raise BadConfig(f"metadata URL {url}: use zk, zk+null, {known}") from None


def _parse_options(query: str) -> ZooKeeperOptions:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise BadConfig(
                f"metadata URL: {name[:40]!r} is not an option; use {', '.join(_OPTIONS)}"
            )
        if name in given or not value:
            raise BadConfig(f"metadata URL: option {name} is given twice or without a value")
        given[name] = value
    auth, sasl = given.get("auth"), given.get("sasl")
    scheme, _, credential = (auth or "").partition(":")
    mechanism, _, login = (sasl or "").partition(":")
    user, _, password = login.partition(":")
    if auth and not credential:
        raise BadConfig(
            "metadata URL: write auth=SCHEME:CREDENTIAL, as in auth=digest:user:password"
        )
    if sasl and mechanism != "GSSAPI" and not password:
        raise BadConfig("metadata URL: write sasl=MECHANISM:USER:PASSWORD, or sasl=GSSAPI")
    if given.get("tls", "yes") != "yes":
        raise BadConfig("metadata URL: tls=yes is the only value of tls")
    if "key" in given and "cert" not in given:
        raise BadConfig("metadata URL: a key needs its cert")
    return ZooKeeperOptions(
        tls=any(name in given for name in ("tls", "ca", "cert")),
        ca=given.get("ca", ""),
        cert=given.get("cert", ""),
        key=given.get("key", ""),
        key_password=given.get("key_password", ""),
        auth=(scheme, credential) if auth else None,
        sasl=(mechanism, user, password) if sasl else None,
    )


_OPTIONS: Final = ("ca", "cert", "key", "key_password", "tls", "auth", "sasl")

"""The contents of a bookie's registration: where it listens and what it can do.

It has the bytes of a BookieServiceInfoFormat, whose fields start at number 6. Bookies that are
older than this message write no bytes, and their id is their address.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.checked_protobuf import as_text, pack_binary, unpack_binary
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Address
from rollbook.proto.wire.schema.data_formats_pb2 import BookieServiceInfoFormat

BOOKIE_PROTOCOL: Final = "bookie-rpc"  # The endpoint that clients use. It is always published.
HTTP_PROTOCOL: Final = "http"
TLS_PROTOCOL: Final = "rollbook-tls"  # The endpoint for requests over TLS. BookKeeper ignores it.

# Rollbook's properties. Other clients ignore them. To a bookie without them, Rollbook's clients
# speak plain BookKeeper.

# A value that was drawn when the bookie's directories were formatted.
INCARNATION: Final = "rollbook.incarnation"
# The `DiskLock.token` of the lock on the bookie's directories.
HOLDER: Final = "rollbook.holder"
# "true" if the bookie will leave the cluster, and gives up its slots.
DRAINING: Final = "rollbook.draining"
# "true" if the bookie may have lost any entry, and accepts none.
DOUBTING: Final = "rollbook.doubting"
# The bookie refuses the writers of ledgers with lower ids, since it may have forgotten their fences.
WRITERS_FROM: Final = "rollbook.writers-from"
# The names of Rollbook's extensions that the bookie understands.
EXTENSIONS: Final = "rollbook.extensions"

# The names of extensions. `batch-read` means batch reads in version 3, and batch reads that skip
# gaps in both versions. A bookie that announces it also checks for doubts before it returns a last
# entry under a fence, since recovery concludes from this entry that the bookie has no later one
# (FR3).
BATCH_READ: Final = "batch-read"
# The bookie returns its id on any connection, since addresses are reused.
IDENTITY: Final = "identity"

_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: str
    protocol: str
    host: str
    port: int
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    endpoints: tuple[Endpoint, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()  # Distinct keys, sorted.

    def __post_init__(self) -> None:
        assert list(self.properties) == sorted(dict(self.properties).items())

    @property
    def address(self) -> Address | None:
        """The address for requests, or None if the bookie publishes none."""
        return self._address(BOOKIE_PROTOCOL)

    @property
    def tls_address(self) -> Address | None:
        return self._address(TLS_PROTOCOL)

    def address_for(self, *, tls: bool) -> Address | None:
        """Returns the address for a client that always uses TLS, or never; None if there is no such address."""
        return self.tls_address if tls else self.address

    @property
    def http_address(self) -> Address | None:
        """The address of the bookie's admin pages."""
        return self._address(HTTP_PROTOCOL)

    def _address(self, protocol: str) -> Address | None:
        for endpoint in self.endpoints:
            if endpoint.protocol == protocol and endpoint.port:
                return Address(endpoint.host, endpoint.port)
        return None

    @property
    def is_draining(self) -> bool:
        return dict(self.properties).get(DRAINING) == "true"

    @property
    def gives_up_slots(self) -> bool:
        """True if writers leave the bookie although it is registered."""
        return self.is_draining or dict(self.properties).get(DOUBTING) == "true"

    @property
    def writers_from(self) -> int:
        """The lowest ledger id whose writer is accepted; 0 if all writers are accepted."""
        lowest = dict(self.properties).get(WRITERS_FROM, "")
        return int(lowest) if lowest.isascii() and lowest.isdigit() else 0

    @property
    def incarnation(self) -> str | None:
        return dict(self.properties).get(INCARNATION)

    @property
    def holder(self) -> str | None:
        return dict(self.properties).get(HOLDER)

    @property
    def extensions(self) -> tuple[str, ...]:
        names = dict(self.properties).get(EXTENSIONS, "")
        return tuple(names.split(",")) if names else ()


def describe_bookie(
    address: Address,
    *,
    incarnation: str = "",
    holder: str = "",
    extensions: tuple[str, ...] = (),
    http: Address | None = None,
    tls: Address | None = None,
    properties: Mapping[str, str] | None = None,
) -> BookieServiceInfo:
    """Returns the record that a bookie of Rollbook publishes. Its endpoints have the same ids as
    those of a Java bookie.
    """
    endpoints = [Endpoint("bookie", BOOKIE_PROTOCOL, address.host, address.port)]
    if tls:
        endpoints.append(Endpoint("bookie-tls", TLS_PROTOCOL, tls.host, tls.port))
    if http:
        endpoints.append(Endpoint("httpserver", HTTP_PROTOCOL, http.host, http.port))
    known = dict(properties or {})
    if incarnation:
        known[INCARNATION] = incarnation
    if holder:
        known[HOLDER] = holder
    if extensions:
        known[EXTENSIONS] = ",".join(extensions)
    return BookieServiceInfo(tuple(endpoints), tuple(sorted(known.items())))


def pack_service_info(info: BookieServiceInfo) -> bytes:
    # A record without endpoints would be empty, which means a bookie older than this message.
    assert info.endpoints
    message = BookieServiceInfoFormat(properties=dict(info.properties))
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    return pack_binary(message)


def unpack_service_info(bookie_id: BookieId, data: bytes) -> BookieServiceInfo:
    if not data:
        return _from_id(bookie_id)
    message = unpack_binary(BookieServiceInfoFormat, data)
    try:
        properties = tuple(sorted((as_text(k), as_text(v)) for k, v in message.properties.items()))
    except UnicodeDecodeError:  # Protobuf itself decodes the keys.
        raise BadMetadata("the name of a property is not UTF-8") from None
    return BookieServiceInfo(tuple(map(_endpoint, message.endpoints)), properties)


def _endpoint(message: BookieServiceInfoFormat.Endpoint) -> Endpoint:
    if not 0 <= message.port <= _PORT_MAX:
        raise BadMetadata(f"{message.port} is not a port")
    return Endpoint(
        as_text(message.id),
        as_text(message.protocol),
        as_text(message.host),
        message.port,
        tuple(map(as_text, message.auth)),
        tuple(map(as_text, message.extensions)),
    )


def _from_id(bookie_id: BookieId) -> BookieServiceInfo:
    host, _, port = bookie_id.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= _PORT_MAX:
        return BookieServiceInfo()
    return describe_bookie(Address(host, int(port)))

"""Registration payloads: exact bytes, the empty payload of old bookies, and invalid data."""

import pytest

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.service_info import (
    BookieServiceInfo,
    Endpoint,
    describe_bookie,
    pack_service_info,
    unpack_service_info,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Address
from tests.golden import metadata as golden

BOOKIE = BookieId("127.0.0.1:3181")
ADDRESS = Address("127.0.0.1", 3181)
PLAIN = describe_bookie(ADDRESS)
FULL = describe_bookie(ADDRESS, http=Address("0.0.0.0", 8080), properties={"impl": "python"})


def test_bookie_payload_matches_bytes_of_java() -> None:
    assert pack_service_info(PLAIN) == golden.SERVICE_INFO
    assert unpack_service_info(BOOKIE, golden.SERVICE_INFO) == PLAIN
    assert PLAIN.address == ADDRESS


def test_payload_with_http_endpoint_and_properties_matches_java() -> None:
    assert pack_service_info(FULL) == golden.SERVICE_INFO_HTTP
    assert unpack_service_info(BOOKIE, golden.SERVICE_INFO_HTTP) == FULL
    assert FULL.endpoints[1] == Endpoint("httpserver", "http", "0.0.0.0", 8080)
    assert FULL.address == ADDRESS


def test_incarnation_and_extensions_are_properties() -> None:
    info = describe_bookie(ADDRESS, incarnation="c0ffee", extensions=("chunked-add", "striped"))
    read = unpack_service_info(BOOKIE, pack_service_info(info))
    assert (read.incarnation, read.extensions) == ("c0ffee", ("chunked-add", "striped"))
    assert (PLAIN.incarnation, PLAIN.extensions) == (None, ())


def test_tls_has_its_own_endpoint() -> None:
    info = describe_bookie(ADDRESS, tls=Address("h", 3182))
    assert (info.address, info.tls_address) == (ADDRESS, Address("h", 3182))
    assert PLAIN.tls_address is None
    assert unpack_service_info(BOOKIE, pack_service_info(info)) == info


def test_described_bookie_names_lock_holder() -> None:
    assert describe_bookie(ADDRESS, holder="c0ffee").holder == "c0ffee"
    assert PLAIN.holder is None


@pytest.mark.parametrize(
    ("bookie_id", "address"),
    [
        ("10.0.0.5:3181", Address("10.0.0.5", 3181)),
        ("bookie-7", None),
        (":3181", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:x", None),
    ],
)
def test_empty_payload_takes_address_from_bookie_id(
    bookie_id: str, address: Address | None
) -> None:
    assert unpack_service_info(BookieId(bookie_id), b"").address == address


def test_order_of_properties_does_not_matter() -> None:
    one = describe_bookie(ADDRESS, properties={"a": "1", "b": "2", "c": "3"})
    other = describe_bookie(ADDRESS, properties={"c": "3", "b": "2", "a": "1"})
    assert one == other
    assert pack_service_info(one) == pack_service_info(other)


def test_payload_without_rpc_endpoint_has_no_address() -> None:
    info = BookieServiceInfo((Endpoint("x", "http", "h", 1), Endpoint("y", "bookie-rpc", "h", 0)))
    assert info.address is None


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        golden.SERVICE_INFO[:-1],
        golden.SERVICE_INFO.replace(b"\x10\xed\x18", b"\x10\xff\xff\x7f"),  # Port 2097151.
        golden.SERVICE_INFO.replace(b"127", b"\xff27"),
        golden.SERVICE_INFO_HTTP.replace(b"impl", b"imp\xec"),
        golden.SERVICE_INFO_HTTP.replace(b"python", b"pytho\xec"),
        b"\x32\x03\x0a\x01x",  # An endpoint without host and port.
    ],
)
def test_invalid_payload_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_service_info(BOOKIE, data)

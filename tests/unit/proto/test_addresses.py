"""Addresses in the form in which users write them."""

import pytest

from rollbook.proto.addresses import is_wildcard, parse_address, require_reachable
from rollbook.proto.errors import BadConfig
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address
from tests.messages import raises_message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h", Address("h", 7)),
        ("h:1", Address("h", 1)),
        (" h.example:65535 ", Address("h.example", 65535)),
        (":1", Address("here", 1)),
        ("h:0", Address("h", 0)),
        ("[::1]:1", Address("::1", 1)),
        ("[::1]", Address("::1", 7)),
    ],
)
def test_missing_parts_of_address_have_defaults(text: str, address: Address) -> None:
    assert parse_address(text, "listen", default_host="here", default_port=7) == address


@pytest.mark.parametrize("text", ["", ":", "h:", "h:x", "h:65536", "::1", "a b", "h:1:2", "[x]:1"])
def test_invalid_address_is_refused(text: str) -> None:
    with raises_message(BadConfig):
        parse_address(text, "listen")


def test_port_without_default_is_required() -> None:
    with pytest.raises(BadConfig):
        parse_address("h", "listen")


def test_loopback_and_wildcard_addresses_are_recognised() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "/run/socket")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.5", "h.example", "")))
    assert all(map(is_wildcard, ("0.0.0.0", "::")))
    assert not any(map(is_wildcard, ("127.0.0.1", "h.example")))


@pytest.mark.parametrize(
    ("listens", "advertised", "is_reachable"),
    [
        (["127.0.0.1"], "127.0.0.1", True),
        (["127.0.0.1"], "localhost", True),
        (["127.0.0.1"], "log-1", False),
        (["127.0.0.1", "10.0.0.1"], "log-1", True),
        (["0.0.0.0"], "log-1", True),
        (["/run/socket"], "log-1", False),
    ],
)
def test_advertised_address_must_be_reachable(
    listens: list[str], advertised: str, is_reachable: bool
) -> None:
    places = [Address(host, 1) for host in listens]
    if is_reachable:
        require_reachable(places, Address(advertised, 1))
    else:
        with pytest.raises(BadConfig):
            require_reachable(places, Address(advertised, 1))

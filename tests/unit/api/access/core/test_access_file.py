import tomllib
from typing import Any

import pytest

from rollbook.api.access.core.access_file import (
    Principals,
    digest_of,
    operator_with,
    parse_principals,
)
from rollbook.proto.errors import BadConfig
from tests.messages import raises_message

TOKEN = "a-token-of-32-bytes-and-canary-8"
FILE = f"""
[principals.ingest]
tokens = [{{ sha256 = "{digest_of(TOKEN)}", expires = 2027-01-31T00:00:00Z }}]
append = ["team/*"]
append_bytes_per_s = 1000
streams = 3

[principals."log-2@eu"]
certificates = ["log-2.example.com"]
admin = ["*"]
"""


def parsed(text: str) -> Principals:
    return parse_principals(tomllib.loads(text)["principals"])


def test_credentials_find_their_principal_in_the_access_file() -> None:
    """G4: the file holds digests, and a digest does not authenticate."""
    principals = parsed(FILE)
    shown = principals.by_token(TOKEN)
    assert shown is not None
    assert shown.principal.name == "ingest"
    assert shown.expires_us == 1_801_353_600_000_000
    assert shown.principal.quotas.streams == 3
    assert principals.by_token(TOKEN[:-1]) is None
    assert principals.by_token(digest_of(TOKEN)) is None, "a digest is not a token"
    assert principals.by_token("") is None
    assert principals.by_token("\udcff") is None
    found = principals.by_certificate(("nobody", "log-2.example.com"))
    assert found is not None
    assert found.principal.grants.is_operator
    assert principals.by_certificate(()) is None


def test_representation_does_not_show_the_token() -> None:
    """G6"""
    assert TOKEN not in repr([*parsed(FILE)])
    assert TOKEN not in repr([*operator_with(TOKEN)])


def hashed(digit: str) -> dict[str, Any]:
    return {"sha256": digit * 64}


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"Bad name": {}}, "not a valid name"),
        ({"operator": {}}, "not a valid name"),
        ({"a": {"raed": ["*"]}}, "unknown key 'raed'"),
        ({"a": {"read": "*"}}, "read is a list"),
        ({"a": {"read": ["nonsense"]}}, "names no logs"),
        ({"a": {"read": [3]}}, "list of strings"),
        ({"a": {"streams": 0}}, "above 0"),
        ({"a": {"streams": True}}, "whole number"),
        ({"a": {"monitor": 1}}, "true or false"),
        ({"a": {"tokens": ["plain-token-in-the-file"]}}, "a token is"),
        ({"a": {"tokens": [hashed("G")]}}, "hexadecimal"),
        ({"a": {"tokens": [hashed("a") | {"expires": "soon"}]}}, "zone"),
        (
            {"a": {"tokens": [hashed("a")]}, "b": {"tokens": [hashed("a")]}},
            "shares one with another principal",
        ),
        ({"a": {"certificates": ["x"]}, "b": {"certificates": ["x"]}}, "two principals"),
        ({"a": 3}, "not a table"),
    ],
)
def test_invalid_access_file_is_refused(tables: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        parse_principals(tables)


def test_expiry_without_time_zone_is_refused() -> None:
    with raises_message(BadConfig):
        parsed(FILE.replace("00Z", "00"))

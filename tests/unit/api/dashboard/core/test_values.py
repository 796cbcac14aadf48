"""Bytes as people read them."""

import json

import pytest

from rollbook.api.dashboard.core.values import HIDDEN, Form, node_text, value_in


@pytest.mark.parametrize(
    ("form", "value", "size", "shown"),
    [
        (Form.TEXT, b"one", 3, "one"),
        (Form.TEXT, b"\xff\x00", 2, "ff 00"),
        (Form.HEX, b"one", 3, "6f 6e 65"),
        (Form.JSON, b'{"a":1}', 7, '{\n  "a": 1\n}'),
        (Form.JSON, b"{", 1, "{"),
        (Form.JSON, b"[" * 1000, 100_000, "[" * 1000 + "… (100,000 bytes)"),
        (Form.TEXT, "é".encode()[:1], 2, "… (2 bytes)"),
        (Form.TEXT, b"", 0, ""),
    ],
)
def test_a_value_is_shown_in_the_form_that_is_wanted(
    form: Form, value: bytes, size: int, shown: str
) -> None:
    assert value_in(form, value, size) == shown


@pytest.mark.parametrize(
    "value",
    [
        b'{"password": "s3cret", "a": [{"Token": "s3cret"}]}',
        b'{"callbacks": {"hmac_key": ["s3cret"], "a": 1}}',
        b'quorum: 3\npassword: "s3cret"\n',
        b"digestPassword=s3cret",
        b'{"config": "a=1\\npassword=s3cret"}',
        b'"password=s3cret"',
        b"BookieMetadataFormatVersion\t3\n\x08\x03s3cret",
        b"BookieMetadataFormatVersion\t1\n3\n3\n0\n0\ts3cret",
        b"\x08\x03\x12\x06s3cret",
        b"\xff\xfes3cret",
        b"s3cret\x00",
    ],
)
def test_no_secret_of_a_node_is_shown(value: bytes) -> None:
    """DB4."""
    assert "s3cret" not in node_text(value)


def test_the_rest_of_a_node_is_shown() -> None:
    assert node_text(b"") == "(empty)"
    assert node_text(b"4\nbookieHost: b\n") == "4\nbookieHost: b"
    assert json.loads(node_text(b'{"secret": 1, "rack": "r"}')) == {"secret": HIDDEN, "rack": "r"}
    assert node_text(b"17") == "17"

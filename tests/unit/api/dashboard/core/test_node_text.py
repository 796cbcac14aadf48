"""Secrets in metadata nodes are hidden."""

import json

import pytest

from rollbook.api.dashboard.core.node_text import HIDDEN, node_text
from rollbook.recovery.core.callback_queue import RegisteredCallback, pack_callback


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
        b"pwd=s3cret",
        b'{"db_pwd": "s3cret", "PWD": "s3cret"}',
        b"api_key: s3cret",
        b'{"apiKey": "s3cret", "keys": ["s3cret"], "key": "s3cret"}',
        b"Authorization: Basic s3cret",
        b'{"auth": {"basic": "s3cret"}, "authHeader": "s3cret"}',
        b'[{"name": "password", "value": "s3cret"}, {"value": "s3cret", "key": "api.key"}]',
        b'{"name": "password", "value": "s3cret"',
        b'{"value": "s3cret", "name": "password"',
        b"- value: s3cret\n  name: password\n",
        b"- name: password\n  value: s3cret\n",
        b'["--password", "s3cret"]',
        b"zk://anna:s3cret@zk1/ledgers",
        b'{"uri": "zk://anna:a@s3cret@zk1/ledgers", "b": ["http://s3cret@h"]}',
        b"password:\n\n  s3cret\nrack: r",
        b"password:\ns3cret\n",
        b"password: |\n  a\n\n  s3cret\n",
        b"tokens:\n- a\n- s3cret\n",
        b"password=a\\\ns3cret",
        b"password: a\n  s3cret\n",
        b"-----BEGIN RSA PRIVATE KEY-----\nAAAA\ns3cret\n-----END RSA PRIVATE KEY-----\n",
        b"a: 1\n-----BEGIN PRIVATE KEY-----\nAAAA\n\ns3cret",
        b'{"pem": "-----BEGIN PRIVATE KEY-----\\ns3cret\\n-----END PRIVATE KEY-----"}',
        b'{"http://anna:s3cret@h": 1}',
        b"cert: MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\ns3cret\n",
        b'{"site": "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg/s3cret"}',
        b'{"lines": ["MC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAA", "s3cret"]}',
        b'{"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCs3cret": 1}',
        b"s3cret\x00",
    ],
)
def test_no_secret_of_a_node_is_shown(value: bytes) -> None:
    """DB4."""
    assert "s3cret" not in node_text(value)


def test_node_text_without_secrets_is_shown() -> None:
    assert node_text(b"") == "(empty)"
    assert node_text(b"4\nbookieHost: b\n") == "4\nbookieHost: b"
    assert json.loads(node_text(b'{"secret": 1, "rack": "r"}')) == {"secret": HIDDEN, "rack": "r"}
    assert node_text(b"17") == "17"
    assert node_text(b"password: x\nrack: r") == f"password {HIDDEN}\nrack: r"
    assert node_text(b"password:\n  x\nrack: r").endswith("\nrack: r")
    assert node_text(b"at http://a:b@h/p?q here") == f"at http://{HIDDEN}@h/p?q here"
    pair = json.loads(node_text(b'{"name": "password", "value": "x"}'))
    assert pair == {"name": "password", "value": HIDDEN}
    plain = b"MINI\nMILLIS: MILLISECONDS\nid: 5f0c2a7e9b1d4c3fa0865d2be9147c31"
    assert node_text(plain) == plain.decode()
    lines = b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nrack: r"
    assert node_text(lines).endswith(f"{HIDDEN}\nrack: r")
    assert node_text(b'{"bookieHost": "b:3181", "rack": "/r"}').count(HIDDEN) == 0


@pytest.mark.parametrize("depth", [101, 600, 5000, 200_000])
def test_deeply_nested_json_is_replaced_by_its_size(depth: int) -> None:
    said = f"({2 * depth:,} bytes of JSON that is nested too deeply)"
    assert node_text(b"[" * depth + b"]" * depth) == said
    assert "s3cret" not in node_text(b'{"a":' * depth + b'"s3cret"' + b"}" * depth)


def test_callback_node_hides_its_secret_and_url() -> None:
    """DB4: the path of a URL often is a secret."""
    shown = node_text(
        pack_callback(RegisteredCallback("5f" * 16, "https://h/5ec3e7-path", "5ec3e7-key"))
    )
    assert ("5ec3e7" in shown, "https" in shown, shown.count(HIDDEN)) == (False, False, 2)

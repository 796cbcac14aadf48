"""Values of records are shown as readable text."""

import pytest

from rollbook.api.dashboard.core.payload_text import Form, value_in


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
def test_value_is_shown_in_the_requested_form(
    form: Form, value: bytes, size: int, shown: str
) -> None:
    assert value_in(form, value, size) == shown

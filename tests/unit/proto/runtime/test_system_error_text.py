"""The text for an error of the system."""

import asyncio
import socket
import ssl

import pytest

from rollbook.proto.runtime.system_error_text import describe_error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/a/b"), "No such file or directory"),
        (
            OSError(98, "error while attempting to bind on address ('::1', 1)"),
            "Address already in use",
        ),
        (ConnectionRefusedError(111, "Connect call failed ('::1', 1)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION] wrong version"),
            "[SSL: WRONG_VERSION] wrong version",
        ),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
        (TimeoutError(), "TimeoutError"),
        (asyncio.IncompleteReadError(b"", 4), "0 bytes read on a total of 4 expected bytes"),
    ],
)
def test_error_text_omits_numbers_and_wrappers(error: Exception, words: str) -> None:
    assert words in describe_error(error)
    assert "Errno" not in describe_error(error)

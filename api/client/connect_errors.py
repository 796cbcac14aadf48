"""Finds out from the text of gRPC's error why a log server could not be reached. There is no other
source."""

import re
from enum import Enum
from typing import Final


class ConnectProblem(Enum):
    NOT_BELIEVED = "its certificate is not signed by a trusted authority"
    NO_TLS = "it does not speak TLS"
    HTTP = "it speaks only HTTP/1"  # Our HTTP port causes this, because it also serves curl.
    # A TLS server does this to clients that do not use TLS.
    HUNG_UP = "it hung up before it sent anything"
    REFUSED = "connection refused; nothing listens there"
    UNKNOWN_HOST = "the host name cannot be resolved"
    SILENCE = "no response"


_SIGNS: Final = (
    (ConnectProblem.NOT_BELIEVED, "CERTIFICATE_VERIFY_FAILED|name verification|peer name"),
    (ConnectProblem.NO_TLS, "WRONG_VERSION_NUMBER"),
    (ConnectProblem.HTTP, r"http1\.x server|selected ALPN"),
    (ConnectProblem.HUNG_UP, "socket closed|reset by peer|CERTIFICATE_REQUIRED|handshake_failure"),
    (ConnectProblem.REFUSED, "connection refused"),
    (ConnectProblem.UNKNOWN_HOST, "dns resolution|errors resolving|name cannot be resolved"),
)
_PLAIN: Final = (ConnectProblem.REFUSED, ConnectProblem.UNKNOWN_HOST)


def obstacle_of(why: str) -> ConnectProblem:
    found = (each for each, sign in _SIGNS if re.search(sign, why, re.IGNORECASE))
    return next(found, ConnectProblem.SILENCE)


def plain_words(why: str) -> str:
    """Returns gRPC's own text if it says more than the problem's name; otherwise that name."""
    problem = obstacle_of(why)
    return problem.value if problem in _PLAIN else why

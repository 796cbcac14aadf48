"""Why a log server could not be reached, by gRPC's own words: there is nothing else."""

import re
from enum import Enum
from typing import Final


class ConnectProblem(Enum):
    NOT_BELIEVED = "its certificate is not signed by anybody who is believed"
    NO_TLS = "it does not speak TLS"
    HTTP = "it speaks HTTP/1 alone"  # As our own door does for curl.
    HUNG_UP = "it hung up before it said anything"  # As TLS does with peers that do not use it.
    SILENCE = "nobody is there"


_SIGNS: Final = (
    (ConnectProblem.NOT_BELIEVED, "CERTIFICATE_VERIFY_FAILED|name verification|peer name"),
    (ConnectProblem.NO_TLS, "WRONG_VERSION_NUMBER"),
    (ConnectProblem.HTTP, r"http1\.x server|selected ALPN"),
    (ConnectProblem.HUNG_UP, "socket closed|reset by peer|CERTIFICATE_REQUIRED|handshake_failure"),
)


def obstacle_of(why: str) -> ConnectProblem:
    found = (each for each, sign in _SIGNS if re.search(sign, why, re.IGNORECASE))
    return next(found, ConnectProblem.SILENCE)

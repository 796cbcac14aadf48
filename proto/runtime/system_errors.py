"""What the system says went wrong, for people: without numbers and without asyncio's words around it."""

import os
import socket
import ssl


def told(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror):
        if error.errno:
            return os.strerror(error.errno)
    elif isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return str(error) or type(error).__name__

"""Captures packets on this machine's interfaces like an eavesdropper. Needs root on Linux."""

import socket
import threading
import time
from typing import Final

_ETH_P_ALL: Final = 3
_CONTROL: Final = b"a control that shows that the capture sees the loopback interface"
_PATIENCE_S: Final = 30.0


class Capture:
    """Captures packets that contain one of some words."""

    def __init__(self, *words: bytes, interface: str = "") -> None:
        """An empty `interface` means all interfaces. Raises `PermissionError`."""
        self.seen: dict[bytes, int] = dict.fromkeys((*words, _CONTROL), 0)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        if interface:
            self._socket.bind((interface, 0))
        self._socket.settimeout(0.2)
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._is_over:
            try:
                packet = self._socket.recv(70_000)
            except TimeoutError:
                continue
            for word in self.seen:
                self.seen[word] += word in packet

    def await_control(self) -> None:
        """Waits until everything that was sent before has been examined."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self.seen[_CONTROL]:
            assert time.monotonic() < deadline_s, "the capture sees nothing"
            server = socket.create_server(("127.0.0.1", 0))
            with server, socket.create_connection(server.getsockname()) as talking:
                talking.sendall(_CONTROL)
            time.sleep(0.1)

    def end(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()

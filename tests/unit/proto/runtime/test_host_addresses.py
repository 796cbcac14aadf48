"""The addresses and names of this machine."""

import socket

import pytest

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.host_addresses import name_of_this_host


def test_host_name_is_used_only_if_it_resolves_to_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"here": "127.0.0.1", "elsewhere": "192.0.2.1"}

    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name not in places:
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (places[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    assert name_of_this_host() == "here"
    for name in ("elsewhere", "unknown", "localhost"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        with pytest.raises(BadConfig, match=name) as refused:
            name_of_this_host()
        assert "--advertise" in refused.value.next_step

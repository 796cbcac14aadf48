"""Finds the addresses and names of this machine, for a server that tells others how to reach it."""

import ctypes
import socket
import struct
from typing import Any, Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.system_error_text import describe_error

# The Linux request for the addresses of all interfaces, as `struct ifreq`.
_SIOCGIFCONF: Final = 0x8912
_INTERFACE_BYTES: Final = 40  # A `struct ifreq` has a name and a `struct sockaddr_in`.
_NAME_BYTES: Final = 16
_ADDRESS_AT: Final = 20
_INTERFACES_MAX: Final = 1024


def address_of_this_host(interface: str | None = None, by_name: bool = False) -> str:
    """Returns this host's IPv4 address on that interface, or the canonical name of that address.

    BookKeeper determines a bookie's id in the same way.

    Raises `BadConfig`.
    """
    address = _own_address() if interface is None else _address_of_interface(interface)
    return _canonical_name(address) if by_name else address


def name_of_this_host() -> str:
    """Returns a name that resolves to an address of this machine. Raises `BadConfig`."""
    name, reason = socket.gethostname(), "it is localhost on every host"
    if name != "localhost":
        reason = "it resolves to no address of this host"
        try:
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
        except OSError as error:
            found, reason = [], describe_error(error)
        if any(_is_of_this_host(family, place) for family, _, _, _, place in found):
            return name
    raise BadConfig(
        "a server that binds every address is registered under the host's name, but "
        f"{name!r} does not resolve to it: {reason}",
        next_step="pass --advertise HOST:PORT",
    )


def _is_of_this_host(family: int, place: tuple[Any, ...]) -> bool:
    """Returns whether the address belongs to this machine, since only such an address can be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind(place)
        except OSError:
            return False
    return True


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise BadConfig(
            f"this host does not know its own address: {describe_error(error)}",
            next_step="configure the address that others should use",
        ) from error


def _canonical_name(address: str) -> str:
    """Returns the name of the address, as Java does; the name must resolve back to the address."""
    try:
        name, _ = socket.getnameinfo((address, 0), socket.NI_NAMEREQD)
        if address in socket.gethostbyname_ex(name)[2]:
            return name
        reason = f"{name} has other addresses"
    except OSError as error:
        reason = describe_error(error)
    raise BadConfig(
        f"{address}, which is this host's, has no name: {reason}",
        next_step="give it a name in DNS or /etc/hosts, or configure the address that others should use",
    )


def _address_of_interface(name: str) -> str:
    """Returns the last address of the interface and its aliases (`eth0:1`), which is the one that
    Java finds first.
    """
    import fcntl  # Windows has none.

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = bytearray(_INTERFACES_MAX * _INTERFACE_BYTES)
        place = (ctypes.c_char * len(answer)).from_buffer(answer)
        request = struct.pack("iL", len(answer), ctypes.addressof(place))
        used, _ = struct.unpack("iL", fcntl.ioctl(asking, _SIOCGIFCONF, request))
    found = {}
    for at in range(0, used, _INTERFACE_BYTES):
        whole = answer[at : at + _NAME_BYTES].partition(b"\0")[0].decode()
        address = socket.inet_ntoa(bytes(answer[at + _ADDRESS_AT : at + _ADDRESS_AT + 4]))
        found[whole] = found[whole.partition(":")[0]] = address
    if name not in found:
        raise BadConfig(f"no network interface {name!r} with an address")
    return found[name]

"""Decides which hosts only this machine can reach. The module is quick to import."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the host."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

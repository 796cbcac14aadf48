"""Decides which hosts only this machine can reach, and when a token may be sent without TLS. The
module is quick to import.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the host."""
    if host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_show_token(host: str, *, uses_tls: bool, insecure: bool) -> bool:
    """Returns whether a client may send its token to this host: over TLS, within the machine, or
    where `insecure` permits it.

    Every client and command uses this rule. The host may come from metadata, which other parties
    can write.
    """
    return uses_tls or insecure or is_loopback(host)

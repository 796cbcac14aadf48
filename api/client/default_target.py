"""Finds a program's cluster and its credentials: those that the program names, or those that the
shell would use.

connect("log://…")      the cluster at the URL, with the arguments of `connect` only, and nothing from the environment
connect()               ROLLBOOK_SERVER with ROLLBOOK_TOKEN_FILE; otherwise the context ROLLBOOK_CONTEXT, or the
                        current one of `rollbook context ls`; otherwise this machine
"""

import os
from dataclasses import dataclass, replace
from typing import Final

from rollbook.api.client.token_file import token_of_file
from rollbook.api.context_file import find, load
from rollbook.proto.errors import BadConfig

DEFAULT_SERVER: Final = "log://127.0.0.1:7400"


@dataclass(frozen=True, slots=True)
class Target:
    url: str = DEFAULT_SERVER
    token: str = ""
    authorities: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False
    tls_name: str = ""

    def overridden(
        self,
        token: str,
        authorities: str,
        certificate: str,
        key: str,
        insecure: bool,
        tls_name: str = "",
    ) -> "Target":
        """Returns the target with the arguments that the program has passed."""
        return replace(
            self,
            token=token or self.token,
            authorities=authorities or self.authorities,
            certificate=certificate or self.certificate,
            key=key or self.key,
            insecure=insecure or self.insecure,
            tls_name=tls_name or self.tls_name,
        )


def unnamed_target() -> Target:
    """Returns the server of a program that names none. Raises `BadConfig`."""
    server, name = (os.environ.get(each, "") for each in ("ROLLBOOK_SERVER", "ROLLBOOK_CONTEXT"))
    token_file = os.environ.get("ROLLBOOK_TOKEN_FILE", "")
    if server and name:
        raise BadConfig(
            "both ROLLBOOK_SERVER and ROLLBOOK_CONTEXT are set", next_step="unset one of them"
        )
    if server:
        return Target(server, token_of_file(token_file))
    if not (name := name or load().current):
        return Target(token=token_of_file(token_file))
    context = find(name)
    return Target(
        context.server,
        token_of_file(token_file or context.token_file),
        context.tls_authorities,
        context.tls_certificate,
        context.tls_key,
        context.insecure,
        context.tls_name,
    )

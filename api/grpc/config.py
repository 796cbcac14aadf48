"""The settings of a gRPC server: its address and its access control."""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.errors import BadConfig
from rollbook.proto.loopback_addresses import is_loopback
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles

CONNECTIONS_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    address: Address
    token_file: str | None = None  # The file's first line is the `Bearer` token of clients.
    tls: TlsFiles | None = None
    # Allows addresses off loopback without TLS and a token: for trusted networks.
    insecure: bool = False
    knows_callers: bool = False  # True: the server gets an authenticator even without a token file.
    # The most connections, each with a file descriptor; further ones are closed. Larger: more clients,
    # more memory. Smaller: the reverse.
    connections_max: int = CONNECTIONS_MAX
    # The most concurrent calls, including streams; further ones are refused. Larger: more clients,
    # more memory. Smaller: the reverse.
    calls_max: int = 4096

    def __post_init__(self) -> None:
        if min(self.calls_max, self.connections_max) < 1:
            raise BadConfig("calls_max and connections_max have to be above 0")
        if self.insecure or is_loopback(self.address.host):
            return
        if not self.tls or not (self.token_file or self.knows_callers):
            raise BadConfig(
                f"gRPC on {self.address} would be open to the network",
                next_step="give it TLS and a token or an access file, listen on 127.0.0.1, or pass --insecure",
            )

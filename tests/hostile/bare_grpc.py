"""A bare gRPC server behind TLS with client certificates: attacks cost every grpcio server as much as this one.

`python -m tests.hostile.bare_grpc CERTIFICATE KEY AUTHORITIES` prints its address, and echoes messages until it is killed.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import grpc

ECHO: Final = "/bare.Bare/Echo"


async def _echo(message: bytes, _: Any) -> bytes:
    return message


async def main() -> None:
    certificate, key, authorities = (Path(path).read_bytes() for path in sys.argv[1:])
    server = grpc.aio.server()
    methods: dict[str, Any] = {"Echo": grpc.unary_unary_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", methods),))
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authorities, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())

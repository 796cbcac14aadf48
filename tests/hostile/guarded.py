"""A log server that is open to a network: gRPC and HTTP behind TLS with client certificates, and an access file. Its clients:

member     has a certificate that the access file names, and every right
stranger   has a certificate of the same authority that the access file does not name
over       has a certificate with the member's name that expired yesterday
"""

import asyncio
import ssl
from pathlib import Path
from typing import Final

from rollbook.api.access.core.access_file import digest_of
from rollbook.api.client.async_client import Client, connect
from rollbook.logservice.ids import LogName
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import TlsFiles, client_context
from tests.support import bookies
from tests.support.bookies import RunningBookie
from tests.support.certificates import Authority
from tests.support.log_processes import LogProcesses
from tests.unit.api.rest.http_client import Client as HttpClient

LOG: Final = LogName("bench", "hostile")
LONG_LOG: Final = LogName("bench", "long")  # Holds more than fits into unread buffers.
_LONG_BYTES: Final = 5 * 1024 * 1024
_RECORD_BYTES: Final = 100 * 1024
TOKENS: Final = {name: f"token-of-{name}-0123456789abcdef" for name in ("elsewhere", "expired")}

_ACCESS: Final = f"""
[principals.member]
certificates = ["member.example"]
read = ["*"]
append = ["*"]
admin = ["*"]

[principals.elsewhere]
tokens = [{{ sha256 = "{digest_of(TOKENS["elsewhere"])}" }}]
read = ["other/*"]
append = ["other/*"]

[principals.expired]
tokens = [{{ sha256 = "{digest_of(TOKENS["expired"])}", expires = 2026-01-01T00:00:00Z }}]
read = ["*"]
append = ["*"]
"""


class GuardedServer:
    def __init__(self, cluster: LogProcesses, folder: Path) -> None:
        self.authority = Authority.make(folder)
        self.shown = {
            name: self.authority.issue(name, f"DNS:{of}.example", days=days)
            for name, of, days in (
                ("member", "member", 2),
                ("stranger", "stranger", 2),
                ("over", "member", -1),
            )
        }
        of_server = self.authority.issue("server", "IP:127.0.0.1")
        access = folder / "access.toml"
        access.write_text(_ACCESS)
        child = cluster.children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            cluster.metadata,
            "--server-name",
            "log-1",
            "--listen",
            "127.0.0.1:0",
            "--rest",
            "127.0.0.1:0",
            "--log-level",
            "error",
            "--tls-certificate",
            of_server.certificate,
            "--tls-key",
            of_server.key,
            "--tls-authorities",
            of_server.authorities,
            "--access-file",
            access,
        )
        while not (line := child.line(bookies.PATIENCE_S)).startswith("rest "):
            pass
        self.http = bookies.address_in(line.replace("https://", ""))
        self.process = RunningBookie(child)
        self.grpc = self.process.wait_ready()

    @property
    def doors(self) -> dict[str, Address]:
        return {"gRPC": self.grpc, "HTTP": self.http}

    def context(self, who: str | None, *, alpn: str = "") -> ssl.SSLContext:
        """The TLS context of a client. None: a client without a certificate."""
        files = self.shown[who] if who else TlsFiles("")
        found = client_context(
            self.authority.certificate, certificate=files.certificate, key=files.key
        )
        if alpn:
            found.set_alpn_protocols([alpn])
        return found

    def client(self, who: str | None, token: str = "") -> Client:
        files = self.shown[who] if who else TlsFiles("")
        return connect(
            f"log+tls://{self.grpc}",
            token=token,
            authorities=self.authority.certificate,
            certificate=files.certificate,
            key=files.key,
        )

    async def make_logs(self) -> None:
        async with self.client("member") as client:
            await client.open(str(LOG), create=True)
            long = await client.open(str(LONG_LOG), create=True)
            async with long.writer() as writer:
                for _ in range(_LONG_BYTES // _RECORD_BYTES):
                    await writer.submit(bytes(_RECORD_BYTES))

    async def is_served(self) -> bool:
        """Whether the member can append at each port and read the record at the other."""
        async with asyncio.timeout(bookies.PATIENCE_S), self.client("member") as client:
            log = await client.open(str(LOG))
            first = (await log.append(b"over gRPC")).first_offset
            http = HttpClient(self.http, tls=self.context("member"))
            path = f"/v1/namespaces/{LOG.namespace}/logs/{LOG.name}/records"
            kind = {"content-type": "application/octet-stream"}
            said = await http.ask("POST", path, b"over HTTP", **kind)
            found = (await http.get(f"{path}?from={first}")).json["records"]
            async for record in log.read(first + 1):
                return (
                    said.status == 201
                    and record.value == b"over HTTP"
                    and [each["data"] for each in found] == ["over gRPC", "over HTTP"]
                )
        return False

"""A client learns of other servers in time, and reports clearly when none responds."""

import asyncio
from pathlib import Path

import pytest

from rollbook.api.client.async_client import connect
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.owner_cache import OwnerCache
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import InvalidRequest, Outcome, RollbookError, ServerUnreachable
from rollbook.proto.runtime.tls import TlsFiles
from tests.support.certificates import Authority
from tests.unit.api.client.conftest import LOOPBACK, Site


async def test_failed_server_list_is_soon_asked_for_again(site: Site) -> None:
    """Otherwise no server is left if the only configured one stops before it names others."""
    await site.start("b")
    site.cores["a"].failures["list_servers"].append(InvalidRequest("not now"))
    client = site.client("a")
    log = await client.open("orders", create=True)
    async with asyncio.timeout(30):
        while site.cluster.addresses["b"] not in client.owners.servers:
            await asyncio.sleep(0.01)
    await site.stop("a")
    assert (await log.append(b"x")).first_offset == 0


async def test_client_that_got_no_response_raises_with_advice() -> None:
    client = connect("log://127.0.0.1:1", LogClientConfig(connect_s=0.1, timeout_s=3600))
    with pytest.raises(ServerUnreachable, match="no log server answers") as found:
        await client.open("orders")
    await client.close()
    assert "rollbook dev" in found.value.next_step
    assert found.value.outcome is Outcome.NOT_APPLIED


async def test_refused_connection_error_has_no_grpc_terms() -> None:
    with pytest.raises(ServerUnreachable) as found:
        await connect("log://127.0.0.1:1").__aenter__()
    where, _, why = found.value.message.partition(": ")
    assert where == "no log server answers at 127.0.0.1:1"
    assert why == "connection refused; nothing listens there"
    assert found.value.next_step.startswith("check host and port")


def test_unknown_host_name_error_has_no_grpc_terms() -> None:
    words = "errors resolving a.invalid:7400: [field:hostname lookup error:Domain name not found]"
    found = OwnerCache(["a.invalid:7400"]).nobody_answers(ServerUnreachable(words))
    assert found.message.endswith("at a.invalid:7400: the host name cannot be resolved")
    assert found.next_step.startswith("check the host name")


async def test_entering_a_client_needs_one_reachable_server(site: Site, tmp_path: Path) -> None:
    """If no server is reachable, the error says why, at once or after `wait_s`."""
    authority = Authority.make(tmp_path)
    files = authority.issue("server", "IP:127.0.0.1")
    config = GrpcConfig(LOOPBACK, tls=TlsFiles(files.certificate, files.key))
    tls = await GrpcServer.start(site.cores["a"], config)
    plain = site.cluster.addresses["a"]
    steps = {
        "log://127.0.0.1:1": "start one",
        f"log://{tls.address}": r"log\+tls://",
        f"log+tls://{tls.address}": "authorities=",
        f"log+tls://{plain}": r"without \+tls",
    }
    hour = LogClientConfig(connect_s=3600, timeout_s=3600)
    try:
        async with asyncio.timeout(60):
            for url, step in steps.items():
                with pytest.raises(ServerUnreachable, match=step):
                    await connect(url, hour).__aenter__()
            with pytest.raises(ServerUnreachable):
                await connect("log://127.0.0.1:1", hour, wait_s=0.1).__aenter__()
            site.cores["a"].failures["get_limits"].append(InvalidRequest("an older server"))
            async with connect(f"log://127.0.0.1:1,{plain}", hour) as client:
                assert client.owners.servers == ("127.0.0.1:1", plain)
    finally:
        await tls.close(0)


async def test_client_waits_for_a_server_that_answered_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a client that never got a response gives up early."""
    failures: list[RollbookError] = []
    on_error = OwnerCache.on_error

    def note(self: OwnerCache, log: LogName | None, address: str, error: RollbookError) -> bool:
        failures.append(error)
        return on_error(self, log, address, error)

    monkeypatch.setattr(OwnerCache, "on_error", note)
    client = site.client("a", connect_s=0.01, timeout_s=60)
    log = await client.open("orders", create=True)
    address = site.doors["a"].address
    await site.stop("a")
    asking = asyncio.ensure_future(log.tail_offset())
    while len(failures) < 3:
        await asyncio.sleep(0.005)
    await site.start("a", address)
    assert await asking == 0


def test_only_configured_servers_stay_in_the_list_when_gone() -> None:
    owners = OwnerCache(["a:1", "b:1"])
    owners.meet_all(["b:1", "c:1", "d:1"])
    assert owners.servers == ("a:1", "b:1", "c:1", "d:1")
    for address in ("a:1", "b:1"):
        owners.on_error(None, address, ServerUnreachable())
    assert owners.address_of(None) == "c:1"
    owners.meet_all(["c:1", "e:1"])
    assert owners.servers == ("a:1", "b:1", "c:1", "e:1")
    assert owners.address_of(None) == "c:1"

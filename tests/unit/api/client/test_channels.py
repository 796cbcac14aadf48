"""Which connections a client uses, and which servers it shows its token."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollbook.api.client.async_client import connect
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc import server
from rollbook.logservice import messages
from rollbook.logservice.ids import Offset
from rollbook.proto.errors import BadConfig, InvalidRequest
from tests.messages import raises_message
from tests.unit.api.client.conftest import Site

CALLS = 3
FAR = "192.0.2.1:7400"


@pytest.mark.parametrize(
    "server", [FAR, "[2001:db8::1]:7400", "log-1.example.com", f"127.0.0.1,{FAR}"]
)
async def test_token_without_tls_needs_the_insecure_option(server: str) -> None:
    with raises_message(BadConfig):
        connect(f"log://{server}", token="secret")
    connect(f"log+tls://{server}", token="secret")
    connect(f"log://{server}", token="secret", insecure=True)
    connect(f"log://{server}")


def test_token_is_not_shown_to_remote_servers_without_tls() -> None:
    shown = [("authorization", "Bearer secret")]
    assert not Channels(Security(token="secret")).shown_to(FAR)
    assert list(Channels(Security(token="secret")).shown_to("[::1]:7400")) == shown
    assert list(Channels(Security(True, token="secret")).shown_to(FAR)) == shown
    assert list(Channels(Security(token="secret", insecure=True)).shown_to(FAR)) == shown


@pytest.mark.parametrize("use", ["append", "read", "tail_offset"])
async def test_use_in_another_event_loop_is_refused(site: Site, use: str) -> None:
    """It would wait for responses that arrive in the loop where the client was first used."""
    await site.start("a")
    client = site.client("a")
    log = await client.open("orders", create=True)
    assert (await log.append(b"here")).first_offset == 0
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: log.append(b"there"),
        "read": lambda: anext(log.read()),
        "tail_offset": log.tail_offset,
    }

    async def elsewhere() -> None:
        await uses[use]()

    with raises_message(InvalidRequest) as told:
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert "connect in the loop" in told.value.next_step
    assert (await log.append(b"here again")).first_offset == 1


async def test_waiting_calls_do_not_block_other_calls(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server bounds the concurrent calls of a connection, so waiting calls use another one."""
    options = dict(server._OPTIONS) | {"grpc.max_concurrent_streams": CALLS}
    monkeypatch.setattr(server, "_OPTIONS", tuple(options.items()))
    core = await site.start("b")
    held = site.cluster.make("ns/log")
    held.owner, held.holder = core.address, "somebody"
    client = site.client("b")
    wait = messages.AcquireWriter(held.name, "me", messages.AcquireMode.WAIT, attempt="mine")
    waiting = [asyncio.ensure_future(client.ask(wait, timeout_s=100)) for _ in range(CALLS)]
    async with asyncio.timeout(30):
        while core.asked.count(wait) < CALLS:
            await asyncio.sleep(0.01)
    tail = await client.ask(messages.GetTail(held.name), timeout_s=60)
    assert tail.tail == Offset(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("uses_tls", [False, True])
def test_key_without_its_certificate_is_refused(uses_tls: bool) -> None:
    """Without an error, the client would show the key to no server."""
    with raises_message(BadConfig) as caught:
        Channels(Security(uses_tls, key="key.pem"))
    assert "certificate=" in caught.value.next_step

"""Callbacks give no access to the network: hostile URLs, host names, addresses and receivers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rollbook.api.rest.callback_post import (
    CallbackPost,
    CallbackTarget,
    check_hosts,
    origin_of,
    parse_target,
    problem_of_address,
    require_allowed,
)
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.recovery.core.callback_queue import DeliveryAnswer
from tests.support.certificates import Authority

PUBLIC = "https://hooks.example.com/x"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# --- URLs -------------------------------------------------------------------------------------

REFUSED_URLS = (
    "",
    "x",
    "hooks.example.com",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "https://",
    "http://hooks.example.com/",
    "http://10.0.0.1/",
    "http://127.0.0.1.example.com/",
    "https://user:secret@hooks.example.com/",
    "https://hooks.example.com@10.0.0.1/",
    "https://hooks.example.com/#x",
    "https://hooks.example.com\\@10.0.0.1/",
    "https://hooks.example.com/\r\nhost: 10.0.0.1",
    "https://hooks.example.com/a b",
    "https://hooks.example.com/\x00",
    "https://hooks.example.com/\t",
    "https://h\u00f6ks.example.com/",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:65536/",
    "https://h:99999999/",
    "https://[::1",
    "https://[fe80::1%25eth0]/",
    "https://hooks_example.com/",
    f"https://hooks.example.com/{'a' * 2_000}",
    " https://hooks.example.com/",
    "gopher://127.0.0.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
)


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_invalid_callback_url_is_refused(url: str) -> None:
    """CP1: no user, fragment or line end, and plain HTTP only to this machine."""
    with pytest.raises(InvalidRequest):
        parse_target(url)


def test_callback_url_is_parsed_into_its_parts() -> None:
    assert parse_target("HTTPS://Hooks.Example.com/A/b?c=%20d") == CallbackTarget(
        "https", "hooks.example.com", 443, "/A/b?c=%20d"
    )
    assert parse_target("http://[::1]:9000") == CallbackTarget("http", "[::1]", 9000, "/")
    assert parse_target("https://hooks.example.com?x").path == "/?x"
    assert origin_of("https://hooks.example.com:8443/secret") == "https://hooks.example.com:8443"
    assert origin_of("nonsense" * 10) == "nonsensenonsensenons"


def test_only_configured_callback_hosts_are_allowed() -> None:
    """CP2."""
    post = CallbackPost(["Hooks.example.com", "other.example.com:8443", "127.0.0.1:9000"])
    for allowed in (PUBLIC, "https://hooks.example.com:1/", "https://other.example.com:8443/"):
        post.require_allowed(allowed)
    post.require_allowed("http://127.0.0.1:9000/")
    for url in (
        "https://other.example.com/",
        "http://127.0.0.1:9001/",
        "http://localhost:9000/",
        "https://evil.example.com/",
        "https://hooks.example.com.evil.com/",
        "https://hooks.example.com./",
        "https://xhooks.example.com/",
    ):
        with pytest.raises(InvalidRequest, match="callback_hosts"):
            post.require_allowed(url)
    for wrong in ("https://hooks.example.com", "a b", "", "*", "h:x"):
        with pytest.raises(BadConfig):
            check_hosts([wrong])
    with pytest.raises(BadConfig, match="nowhere"):
        CallbackPost([], "/nowhere.pem")


# --- Addresses --------------------------------------------------------------------------------

PRIVATE = (
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.1",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
    "2001:0:4136:e378::",
    "64:ff9b:1::1",
    "nonsense",
)


@pytest.mark.parametrize("address", PRIVATE)
async def test_host_resolving_to_a_non_public_address_is_refused(address: str) -> None:
    """CP3: one such address among several is enough."""
    for found in ([address], ["8.8.8.8", address]):
        answer = await _posted(PUBLIC, found)
        assert (answer.status, answer.is_good) == (None, False)
        assert answer.problem
        assert (
            "public" in answer.problem
            or "IPv4" in answer.problem
            or "not an IP address" in answer.problem
        )


def test_public_host_needs_public_and_localhost_local_addresses() -> None:
    target, local = parse_target(PUBLIC), parse_target("http://localhost/")
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"):
        assert problem_of_address(target, address) is None
        assert problem_of_address(local, address) is not None
    assert problem_of_address(local, "127.0.0.1") is problem_of_address(local, "::1") is None


async def _posted(url: str, addresses: Sequence[str]) -> DeliveryAnswer:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    post = CallbackPost(["hooks.example.com", "localhost"], resolve=resolve, deadline_s=5)
    return await post.post(url, {}, b"{}")


async def test_callback_host_is_resolved_once_per_request() -> None:
    """CP3: the checked address is the one connected to, so DNS rebinding gains nothing."""
    asked: list[str] = []
    async with receiving(_answer(b"HTTP/1.1 204 No Content\r\n\r\n")) as port:

        async def rebinding(host: str, _: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

        post = CallbackPost(["localhost"], resolve=rebinding)
        url = f"http://localhost:{port}/"
        assert await post.post(url, {}, b"{}") == DeliveryAnswer(204)
        assert asked == ["localhost"]
        assert (await post.post(url, {}, b"{}")).problem == "10.0.0.1 is not this machine"


# --- Receivers --------------------------------------------------------------------------------


@asynccontextmanager
async def receiving(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    tasks: list[asyncio.Task[None]] = []

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            try:
                await handle(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.transport.abort()
                with suppress(OSError):
                    await writer.wait_closed()

        tasks.append(asyncio.create_task(serve()))

    server = await asyncio.start_server(on_client, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _answer(data: bytes, seen: list[bytes] | None = None) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(2)
        if seen is not None:
            seen.extend((head, body))
        writer.write(data)
        await writer.drain()
        if data:  # An abort drops buffered TLS data, so the client closes first.
            await reader.read()

    return handle


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1_000):  # Until the client closes.
        pass


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for each in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000:
        writer.write(bytes([each]))
        await writer.drain()
        await asyncio.sleep(0.05)


RECEIVERS: dict[str, tuple[Handler, int | None, str]] = {
    "good": (_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), 200, ""),
    "interim": (_answer(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 Good\r\n\r\n"), 204, ""),
    "flood": (_flood, 200, ""),
    "redirect": (
        _answer(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\n\r\n"),
        302,
        "redirects are not followed",
    ),
    "error": (_answer(b"HTTP/1.1 500 No\r\n\r\n"), 500, "it answered 500"),
    "nonsense": (_answer(b"SSH-2.0-OpenSSH\r\n\r\n"), None, "not HTTP"),
    "large head": (_answer(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000), None, "not HTTP"),
    "many interim": (_answer(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), None, "not HTTP"),
    "hangs up": (_answer(b""), None, "not HTTP"),
    "hangs": (_hang, None, "no complete response within 0.5 s"),
    "trickles": (_trickle, None, "no complete response within 0.5 s"),
}


@pytest.mark.parametrize("name", RECEIVERS)
async def test_receiver_response_is_bounded_and_not_followed(name: str) -> None:
    """CP4: one request of bounded time and response size; redirects are not followed."""
    handle, status, problem = RECEIVERS[name]
    async with asyncio.timeout(10), receiving(handle) as port:
        post = CallbackPost(["127.0.0.1"], deadline_s=0.5)
        answer = await post.post(f"http://127.0.0.1:{port}/x", {}, b"{}")
    assert answer.status == status
    assert problem in (answer.problem or "")
    assert answer.is_good is (problem == "")


async def test_request_has_the_given_path_and_headers() -> None:
    seen: list[bytes] = []
    async with receiving(_answer(b"HTTP/1.1 204 Good\r\n\r\n", seen)) as port:
        post = CallbackPost(["127.0.0.1"])
        url = f"http://127.0.0.1:{port}/a%20b?c=d"
        assert (await post.post(url, {"rollbook-event": "lifecycle/bk-1@1f.0"}, b"{}")).is_good
        head = seen[0].decode()
        assert head.startswith("POST /a%20b?c=d HTTP/1.1\r\n")
        assert f"host: 127.0.0.1:{port}\r\nrollbook-event: lifecycle/bk-1@1f.0\r\n" in head
        for evil in ("a\r\nx: y", "a\nb", "", "\u00e4", "a\x00"):
            answer = await post.post(url, {"rollbook-event": evil}, b"{}")
            assert answer.problem == "rollbook-event cannot be sent in a header"
        assert len(seen) == 2
    assert (await post.post(url, {}, b"{}")).problem
    refused = await post.post("https://127.0.0.2/", {}, b"{}")
    assert "callback_hosts" in (refused.problem or "")


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/", "https://169.254.169.254/", "https://[fd00::1]/"]
)
def test_private_address_in_a_url_is_refused_even_if_configured(url: str) -> None:
    """No setting allows it, so the next step names none."""
    with pytest.raises(InvalidRequest) as refused:
        require_allowed(parse_target(url), [parse_target(url).host])
    assert "public" in refused.value.message
    assert "callback_hosts" not in refused.value.next_step


def test_refusal_of_a_callback_host_names_the_port() -> None:
    with pytest.raises(InvalidRequest, match="localhost:19001 is not one of"):
        require_allowed(parse_target("http://localhost:19001/"), ["localhost:19000"])


async def test_receiver_certificate_must_match_the_url_host(tmp_path: Path) -> None:
    """CP3: the name is that of the URL, although the connection is made to an address."""
    authority = Authority.make(tmp_path)
    files = authority.issue("receiver", "DNS:localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certificate, files.key)
    seen: list[bytes] = []
    async with receiving(_answer(b"HTTP/1.1 204 Good\r\n\r\n", seen), tls) as port:

        async def resolve(host: str, _: int) -> Sequence[str]:
            return ["127.0.0.1"]

        hosts = ["localhost", "127.0.0.1"]
        known = CallbackPost(hosts, authority.certificate, resolve=resolve)
        assert await known.post(f"https://localhost:{port}/", {}, b"{}") == DeliveryAnswer(204)
        for post, host in (
            (CallbackPost(hosts, resolve=resolve), "localhost"),
            (known, "127.0.0.1"),
        ):
            refused = await post.post(f"https://{host}:{port}/", {}, b"{}")
            assert (refused.problem or "").startswith("its certificate is not accepted: ")
        assert len(seen) == 2, "nothing was sent to the refused receivers"


@pytest.mark.parametrize("host", ["10.0.0.1", "[fd00::1]:443", "hooks.example.com:0", "a b"])
def test_unreachable_callback_host_setting_is_refused(host: str) -> None:
    with pytest.raises(BadConfig, match="callback_hosts"):
        check_hosts([host])

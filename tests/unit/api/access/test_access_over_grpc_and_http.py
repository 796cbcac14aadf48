"""Access control at both doors, gRPC and HTTP: the same rules hold at each."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rollbook.api.access import authenticator as module
from rollbook.api.access import authorized_append_stream
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import CALLER, Authenticator, anybody
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.access.core.access_file import digest_of
from rollbook.api.access.core.grants import may_ask
from rollbook.api.cli.server.log import load_log_settings
from rollbook.api.client.append_stream import ClientAppendStream
from rollbook.api.client.channels import Channels, Security
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.peer_channels import GrpcPeers
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.grpc.server import GrpcServer
from rollbook.api.grpc.status import error_of_call
from rollbook.api.rest.log_app import RestServer
from rollbook.api.rest.metrics_and_settings import MetricsPage
from rollbook.api.rest.server import HttpConfig
from rollbook.api.rpc_methods import BY_REQUEST, METHODS, READ_STREAM, CallKind, Method
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, SegmentId
from rollbook.logservice.position_syntax import Earliest
from rollbook.logservice.stats import LogStats
from rollbook.proto.errors import (
    BadConfig,
    ConnectionLost,
    InvalidRequest,
    NotOwner,
    RollbookError,
    Throttled,
    Unauthorized,
)
from rollbook.proto.ports import Address
from rollbook.proto.runtime.file_stamp import file_stamp
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.prometheus_text import Metrics
from rollbook.proto.runtime.tls import TlsFiles, client_context
from rollbook.proto.v1 import log_pb2
from tests.support.certificates import Authority
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.grpc.samples import LOG, sample
from tests.unit.api.rest.http_client import Answer, Client
from tests.unit.api.rest.log_routes import LOG as PATH
from tests.unit.api.rest.log_routes import RAW, ROUTES, Route

LOOPBACK = Address("127.0.0.1", 0)
DEADLINE_S = 30.0
HELD_S = DEADLINE_S  # Time-out of a call whose caller sends nothing.
PRINCIPALS = {
    "reader": 'read = ["ns/log"]',
    "appender": 'append = ["ns/log"]',
    "admin": 'admin = ["ns/log"]',
    "elsewhere": 'read = ["ns/other"]\nappend = ["ns/other"]\nadmin = ["ns/other"]',
    "everything": 'read = ["*"]\nappend = ["*"]\nadmin = ["*"]',
    "bounded": 'read = ["*"]\nappend = ["*"]\nappend_records_per_s = 2\nread_records_per_s = 2\n'
    "streams = 1",
}


def token_of(name: str) -> str:
    return f"canary-token-of-{name}-0123456789abcdef"


def file_of(principals: dict[str, str]) -> str:
    sections = [
        f'[principals.{name}]\ntokens = [{{ sha256 = "{digest_of(token_of(name))}" }}]\n{text}'
        for name, text in principals.items()
    ]
    expired = f'{{ sha256 = "{digest_of(token_of("expired"))}", expires = 2026-01-01T00:00:00Z }}'
    sections.append(f'[principals.expired]\ntokens = [{expired}]\nread = ["*"]')
    return "\n".join([*sections, '[principals.machine]\ncertificates = ["m.example"]\nread=["*"]'])


@dataclass
class Site:
    core: FakeCore
    path: Path
    authenticator: Authenticator
    grpc: GrpcServer
    rest: RestServer
    channels: Channels

    def rewrite(self, principals: dict[str, str]) -> None:
        """Rewrites the access file in place, with its end mark."""
        self.path.write_text(f"{file_of(principals)}\n# end\n")

    async def ask(self, method: Method, request: Any, who: str | None) -> Any:
        """Returns the response or the stream's first event; raises the server's error."""
        data = pack(request).SerializeToString()
        metadata = (("authorization", f"Bearer {token_of(who)}"),) if who else ()
        channel = self.channels.to(str(self.grpc.address))
        try:
            if method.kind is CallKind.CALL:
                call = channel.unary_unary(method.path)
                return await call(data, timeout=DEADLINE_S, metadata=metadata)
            events = channel.unary_stream(method.path)(data, timeout=DEADLINE_S, metadata=metadata)
            try:
                return await events.read()
            finally:
                events.cancel()
        except grpc.aio.AioRpcError as error:
            raise error_of_call(
                error.code(), error.details() or "", error.trailing_metadata()
            ) from None

    async def http(self, route: Route, who: str | None) -> Answer:
        headers = dict(route.headers)
        if who:
            headers["authorization"] = f"Bearer {token_of(who)}"
        return await Client(self.rest.address).ask(route.method, route.path, route.body, **headers)

    async def append_http(self, who: str) -> Answer:
        return await self.http(Route("append", "POST", f"{PATH}/records", b"x", RAW), who)

    def line(self, who: str) -> ClientAppendStream:
        security = Security(token=token_of(who))
        channels = Channels(security)
        self.channels_of_lines.append(channels)
        return ClientAppendStream(channels, str(self.grpc.address))

    def __post_init__(self) -> None:
        self.channels_of_lines: list[Channels] = []


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Site]:
    path = tmp_path / "access.toml"
    path.write_text(file_of(PRINCIPALS))
    core = FakeCore(FakeCluster())
    core.cluster.addresses["a"] = "127.0.0.1:7400"
    core.cluster.make(str(LOG)).append(pack_block([b"x", b"y"]), None)
    core.cluster.make("ns/unseen")
    authenticator = Authenticator(None, str(path))
    at_grpc = await GrpcServer.start(core, GrpcConfig(LOOPBACK), authenticator)
    at_rest = await RestServer.start(
        core, HttpConfig(LOOPBACK), lambda _: "", authenticator=authenticator
    )
    site = Site(core, path, authenticator, at_grpc, at_rest, Channels(Security()))
    yield site
    for each in (site.channels, *site.channels_of_lines):
        await each.close()
    await at_rest.close()
    await at_grpc.close(0)


# --- Rights -------------------------------------------------------------------------------------

EVERY_CALL = [method for method in METHODS if method.kind is not CallKind.APPEND_STREAM]


async def test_grpc_methods_need_their_rights(there: Site) -> None:
    """G5: gRPC admits what `may_ask` admits; a refused request never reaches the service."""
    for method in EVERY_CALL:
        request = sample(method.request)
        for who in (None, "expired", "nobody", "elsewhere", "reader", "appender", "admin"):
            there.core.asked.clear()
            principal = there.authenticator._principals.named(who or "")
            may = principal is not None and who != "expired" and may_ask(principal.grants, request)
            try:
                await there.ask(method, request, who)
                was_let_in = True
            except Unauthorized:
                was_let_in = False
            except RollbookError:  # The fake core failed, so the request was let in.
                was_let_in = True
            assert was_let_in == may, (method.name, who)
            is_list = (
                method.request is messages.ListLogs
            )  # Without visible logs, a list asks nothing.
            assert bool(there.core.asked) == may or (may and is_list), (method.name, who)


async def test_http_routes_need_their_rights(there: Site) -> None:
    """G5: HTTP responds with 401 to unknown callers and 403 to known callers without rights."""
    for route in ROUTES:
        for who in (None, "expired", "nobody", "elsewhere"):
            there.core.asked.clear()
            answer = await there.http(route, who)
            if who != "elsewhere":
                assert answer.status == 401, route.name
                assert route.method == "HEAD" or answer.reason == "UNAUTHORIZED"
                assert answer.headers["www-authenticate"].startswith("Bearer")
            elif "/namespaces/" in route.path and route.core_name != "list_logs":
                assert answer.status == 403, (route.name, answer.body)
            if answer.status in (401, 403):
                assert not there.core.asked, route.name
    for who, route in (
        ("reader", Route("read", "GET", f"{PATH}/records?from=0")),
        ("appender", Route("append", "POST", f"{PATH}/records", b"x", RAW)),
        ("admin", Route("roll_log", "POST", f"{PATH}:roll")),
    ):
        for each in ("reader", "appender", "admin"):
            assert (await there.http(route, each)).status == (
                403 if each != who else 201 if who == "appender" else 200
            )


async def test_hidden_log_looks_like_a_missing_log(there: Site) -> None:
    """Both are refused in the same words; lists and look-ups leave hidden logs out."""
    refusals = []
    for name in ("unseen", "nowhere"):
        with pytest.raises(Unauthorized) as caught:
            await there.ask(
                BY_REQUEST[messages.GetLog], messages.GetLog(LogName("ns", name)), "elsewhere"
            )
        refusals.append(str(caught.value).replace(name, "…"))
    assert refusals[0] == refusals[1]
    shown = await there.http(Route("list_logs", "GET", "/v1/logs"), "reader")
    assert shown.json["logs"] == ["ns/log"]
    owners = await there.http(
        Route("lookup", "GET", "/v1/owners?log=ns/log&log=ns/unseen"), "reader"
    )
    assert [each["log"] for each in owners.json["owners"]] == ["ns/log"]


async def test_list_pages_reveal_no_hidden_logs(there: Site) -> None:
    """G5: page tokens name visible logs only, and hidden logs leave no gaps in pages."""
    for name in ("ns/a", "ns/hidden", "ns/log2", "ns/z"):
        there.core.cluster.make(name)
    there.rewrite({**PRINCIPALS, "reader": 'read = ["ns/log*", "ns/z"]'})
    pages, token = list[list[str]](), ""
    while not pages or token:
        path = f"/v1/logs?limit=1&page_token={token}"
        page = (await there.http(Route("list_logs", "GET", path), "reader")).json
        pages.append(page["logs"])
        token = page["next_page"]
        assert token in ("", page["logs"][-1])
    assert pages == [["ns/log"], ["ns/log2"], ["ns/z"]]


# --- Append streams -----------------------------------------------------------------------------


class RecordedResults:
    def __init__(self) -> None:
        self.results: asyncio.Queue[tuple[Any, RollbookError | None]] = asyncio.Queue()

    def on_result(self, ack: Any, error: RollbookError | None) -> None:
        self.results.put_nowait((ack, error))

    async def next(self) -> tuple[Any, RollbookError | None]:
        async with asyncio.timeout(DEADLINE_S):
            return await self.results.get()


async def test_append_stream_refuses_only_logs_without_right(there: Site) -> None:
    """Appends to the other log of the stream succeed."""
    line, mine, others = there.line("appender"), RecordedResults(), RecordedResults()
    ref = line.bind(LOG, is_ordered=True)
    other = line.bind(LogName("ns", "unseen"), is_ordered=True)
    for _ in range(3):
        line.submit(other, pack_block([b"n"]), None, others.on_result)
        line.submit(ref, pack_block([b"z"]), None, mine.on_result)
    for _ in range(3):
        _, refusal = await others.next()
        assert isinstance(refusal, Unauthorized)
        ack, error = await mine.next()
        assert error is None, ack
    assert not there.core.cluster.log(LogName("ns", "unseen")).blocks
    await line.close()


async def test_stream_with_too_many_refused_binds_ends(there: Site) -> None:
    """G8: a stream remembers a bounded number of refused binds."""
    CALLER.set(there.authenticator.admit(f"Bearer {token_of('appender')}"))
    stream = AuthorizedService(there.core, there.authenticator.audit).open_append_stream()
    binds = [messages.Bind(ref, LogName("ns", "unseen"), True) for ref in range(2000)]
    stream.submit(binds[:1000], ())
    stream.submit(binds[:1000], ())
    with pytest.raises(InvalidRequest):
        stream.submit(binds[1000:], ())
    await stream.close()


async def test_refusal_overtakes_a_pending_append(there: Site) -> None:
    """Cancelling an earlier wait for results loses no result and leaves no task."""
    CALLER.set(there.authenticator.admit(f"Bearer {token_of('appender')}"))
    stream = AuthorizedService(there.core, there.authenticator.audit).open_append_stream()
    binds = [messages.Bind(1, LOG, True), messages.Bind(2, LogName("ns", "unseen"), True)]
    there.core.holds.add("append_stream")
    before = asyncio.all_tasks()
    waiting = asyncio.ensure_future(stream.results())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asyncio.all_tasks() == before
    block = pack_block([b"z"])
    stream.submit(binds, [messages.StreamAppend(number, number, block) for number in (1, 2)])
    async with asyncio.timeout(DEADLINE_S):
        (refused,) = await stream.results()
        assert (refused.number, type(refused.error)) == (2, Unauthorized)
        there.core.release()
        (taken,) = await stream.results()
        assert (taken.number, taken.error) == (1, None)
    await stream.close()


async def test_unread_refusals_pause_the_append_stream(there: Site) -> None:
    """G8."""
    CALLER.set(there.authenticator.admit(f"Bearer {token_of('appender')}"))
    stream = AuthorizedService(there.core, there.authenticator.audit).open_append_stream()
    unseen = messages.Bind(1, LogName("ns", "unseen"), True)
    block = pack_block([b"z"])
    stream.submit([unseen], [messages.StreamAppend(number, 1, block) for number in range(1000)])
    ready = asyncio.ensure_future(stream.ready())
    await asyncio.sleep(0)
    assert not ready.done()
    async with asyncio.timeout(DEADLINE_S):
        assert len(await stream.results()) == 1000
        await ready
    await stream.close()


async def test_append_stream_ends_when_its_token_is_removed(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: a removed token opens nothing more and keeps no stream open."""
    monkeypatch.setattr(module, "_LOOK_NS", 0)
    line, told = there.line("appender"), RecordedResults()
    ref = line.bind(LOG, is_ordered=True)
    line.submit(ref, pack_block([b"z"]), None, told.on_result)
    assert (await told.next())[1] is None
    there.rewrite({name: text for name, text in PRINCIPALS.items() if name != "appender"})
    before = len(there.core.cluster.log(LOG).blocks)
    line.submit(ref, pack_block([b"late"]), None, told.on_result)
    _, error = await told.next()
    assert isinstance(error, ConnectionLost), (
        "the append may have arrived before: its outcome is unknown"
    )
    assert len(there.core.cluster.log(LOG).blocks) == before
    await line.close()
    with pytest.raises(Unauthorized):
        await there.ask(BY_REQUEST[messages.GetLimits], messages.GetLimits(), "appender")


async def test_read_stream_ends_when_its_token_is_removed(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_NS", 0)
    events = _read_stream(there, "reader", heartbeat_ms=100)
    assert await events.read()
    there.rewrite({name: text for name, text in PRINCIPALS.items() if name != "reader"})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _all_of(events)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def _all_of(events: Any) -> None:
    while await events.read() is not grpc.aio.EOF:
        pass


def _read_stream(there: Site, who: str, heartbeat_ms: int = 5000) -> Any:
    asked = messages.ReadStream(LOG, Earliest(), heartbeat_ms=heartbeat_ms)
    channel = there.channels.to(str(there.grpc.address))
    return channel.unary_stream(READ_STREAM.path)(
        pack(asked).SerializeToString(),
        timeout=DEADLINE_S,
        metadata=(("authorization", f"Bearer {token_of(who)}"),),
    )


async def test_unauthenticated_callers_cannot_hold_calls(there: Site) -> None:
    """G8: endless calls need authentication; anybody may ask whether the server serves."""
    channel = there.channels.to(str(there.grpc.address))
    health = health_pb2_grpc.HealthStub(channel)
    question = health_pb2.HealthCheckRequest()
    asked = reflection_pb2.ServerReflectionRequest(list_services="")

    def shown_by(who: str | None) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token_of(who)}"),) if who else ()

    def streams(who: str | None) -> list[Any]:
        given = shown_by(who)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        return [
            health.Watch(question, timeout=DEADLINE_S, metadata=given),
            reflection.ServerReflectionInfo(iter([asked]), timeout=DEADLINE_S, metadata=given),
        ]

    assert (await health.Check(question, timeout=DEADLINE_S)).status == 1
    for who in (None, "nobody", "expired"):
        for stream in streams(who):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

    async def say_nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    for method in ("/rollbook.v1.LogAdmin/GetLimits", "/rollbook.v1.LogService/Read", "/no/such"):
        for who in (None, "expired"):
            call = channel.stream_unary(method)
            silent = call(say_nothing(), timeout=HELD_S, metadata=shown_by(who))
            assert await silent.code() is grpc.StatusCode.PERMISSION_DENIED
    checks = [
        channel.stream_unary("/grpc.health.v1.Health/Check")(say_nothing()) for _ in range(80)
    ]
    first, *_ = await asyncio.wait(
        [asyncio.ensure_future(each.code()) for each in checks],
        timeout=DEADLINE_S,
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert first.pop().result() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (
        await there.ask(BY_REQUEST[messages.GetLimits], messages.GetLimits(), "reader")
    ) is not None
    for each in checks:
        each.cancel()
    for stream in streams("reader"):
        assert await stream.read() is not grpc.aio.EOF
        stream.cancel()


# --- Quotas -------------------------------------------------------------------------------------


async def test_call_beyond_its_rate_gets_a_retry_delay(there: Site) -> None:
    """G8: both doors share one quota and respond with the same reason."""
    request = messages.Append(LOG, pack_block([b"z"] * 1000))
    await there.ask(BY_REQUEST[messages.Append], request, "bounded")
    with pytest.raises(Throttled) as caught:
        await there.ask(BY_REQUEST[messages.Append], request, "bounded")
    assert caught.value.ids["retry_after_ms"] > 100_000
    answer = await there.append_http("bounded")
    assert (answer.status, answer.reason) == (429, "THROTTLED")
    assert int(answer.headers["retry-after"]) > 100
    assert answer.json["retryable"]
    assert answer.json["outcome"] == "not_applied"
    assert (await there.append_http("appender")).status == 201, "each principal has its own quota"


async def test_http_read_beyond_its_rate_is_refused(there: Site) -> None:
    there.core.cluster.log(LOG).append(pack_block([b"z"] * 1000), None)
    everything = Route("read", "GET", f"{PATH}/records?from=0")
    assert (await there.http(everything, "bounded")).status == 200
    assert (await there.http(everything, "bounded")).status == 429
    assert (await there.http(everything, "reader")).status == 200


async def test_append_stream_beyond_its_rate_is_paused(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G8: the server stops reading the stream until its debt is paid; no append fails."""
    now_ns, waits, naps = 0, asyncio.Queue[float](), asyncio.Semaphore(0)

    async def sleep(wait_s: float) -> None:
        waits.put_nowait(wait_s)
        await naps.acquire()

    monkeypatch.setattr(
        authorized_append_stream, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
    )
    CALLER.set(there.authenticator.admit(f"Bearer {token_of('bounded')}"))
    stream = AuthorizedService(there.core, now_ns=lambda: now_ns).open_append_stream()
    await stream.ready()
    stream.submit(
        [messages.Bind(1, LOG, True)], [messages.StreamAppend(1, 1, pack_block([b"z"] * 1002))]
    )
    ready = asyncio.ensure_future(stream.ready())
    for wait_s in (500, 200):  # 1,000 records at 2/s: an early wake-up waits for the rest.
        assert await waits.get() == wait_s
        assert not ready.done()
        now_ns += 300_000_000_000
        naps.release()
    async with asyncio.timeout(DEADLINE_S):
        await ready
    (result,) = await stream.results()
    assert result.error is None
    await stream.close()


async def test_throttled_read_stream_reports_what_it_waits_for(there: Site) -> None:
    there.core.cluster.log(LOG).append(pack_block([b"z"] * 1000), None)
    events = _read_stream(there, "bounded", heartbeat_ms=100)
    while True:
        event = log_pb2.ReadEvent.FromString(await events.read())
        if event.WhichOneof("event") == "progress":
            break
    assert event.progress.waits_for == log_pb2.WAITS_FOR_THROTTLE
    assert event.progress.position == event.progress.tail == 1002
    events.cancel()


async def test_new_read_stream_waits_for_debt_of_earlier_stream(there: Site) -> None:
    """G8: a reader that reconnects does not get more than its rate."""
    there.rewrite({**PRINCIPALS, "bounded": 'read = ["*"]\nread_records_per_s = 2'})
    there.core.cluster.log(LOG).append(pack_block([b"z"] * 1000), None)
    first = _read_stream(there, "bounded")
    assert log_pb2.ReadEvent.FromString(await first.read()).records.next_offset > 1000
    first.cancel()
    for _ in range(2):
        again = _read_stream(there, "bounded", heartbeat_ms=100)
        event = log_pb2.ReadEvent.FromString(await again.read())
        assert event.progress.waits_for == log_pb2.WAITS_FOR_THROTTLE
        assert event.progress.position == 0
        again.cancel()
    reads = [request for request in there.core.asked if isinstance(request, messages.ReadStream)]
    assert len(reads) == 1  # A throttled stream reads nothing ahead.


async def test_stream_beyond_the_stream_quota_is_refused(there: Site) -> None:
    first = _read_stream(there, "bounded")
    assert await first.read()
    second = _read_stream(there, "bounded")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await second.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    answer = await there.http(
        Route("watch_tail", "GET", f"{PATH}/tail", headers={"accept": "text/event-stream"}),
        "bounded",
    )
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    first.cancel()
    async with asyncio.timeout(DEADLINE_S):
        while there.authenticator._accounts["bounded"].streams:
            await asyncio.sleep(0.01)
    third = _read_stream(there, "bounded")
    assert await third.read()
    third.cancel()


# --- The access file ----------------------------------------------------------------------------


async def test_changed_access_file_is_reloaded(there: Site) -> None:
    """G3: an invalid file leaves the previous file in force and is logged once."""
    with structlog.testing.capture_logs() as logs:
        there.path.write_text("[principals.x]\nnonsense = 1")
        for _ in range(3):
            await there.ask(BY_REQUEST[messages.GetLimits], messages.GetLimits(), "reader")
        there.rewrite({"new": 'read = ["*"]'})
        await there.ask(BY_REQUEST[messages.GetLimits], messages.GetLimits(), "new")
        with pytest.raises(Unauthorized):
            await there.ask(BY_REQUEST[messages.GetLimits], messages.GetLimits(), "reader")
    events = [each["event"] for each in logs]
    assert events == ["access_not_reloaded", "access_reloaded", "access_refused"]


async def test_access_file_writable_by_others_is_refused(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: write access to this file grants every right."""
    os.chmod(there.path, 0o622)
    with pytest.raises(BadConfig, match="others may write it"):
        Authenticator(None, str(there.path))
    os.chmod(there.path, 0o600)
    if os.geteuid() == 0:
        os.chown(there.path, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadConfig, match="another user"):
        Authenticator(None, str(there.path))


async def test_reload_of_access_file_keeps_used_quota(there: Site) -> None:
    request = messages.Append(LOG, pack_block([b"z"] * 1000))
    await there.ask(BY_REQUEST[messages.Append], request, "bounded")
    there.rewrite({**PRINCIPALS, "more": 'read = ["*"]'})
    with pytest.raises(Throttled):
        await there.ask(BY_REQUEST[messages.Append], request, "bounded")


# --- The audit ----------------------------------------------------------------------------------


async def test_acts_and_refusals_are_audited(there: Site) -> None:
    """G9: each event has principal, method, log and outcome; reads are not logged."""
    with structlog.testing.capture_logs() as logs:
        await there.ask(BY_REQUEST[messages.RollLog], messages.RollLog(LOG), "admin")
        await there.http(Route("read", "GET", f"{PATH}/records?from=0"), "reader")
        there.core.failures["delete_log"].append(ConnectionLost("who knows"))
        with pytest.raises(RollbookError):
            await there.ask(BY_REQUEST[messages.DeleteLog], messages.DeleteLog(LOG), "admin")
        await there.http(Route("seal", "POST", f"{PATH}:seal"), "reader")
    assert [each["event"] for each in logs] == ["act_done", "act_failed", "access_refused"]
    done, failed, refused = logs
    assert (done["principal"], done["method"], done["log"]) == ("admin", "RollLog", "ns/log")
    assert done["peer"].startswith("ipv4:127.0.0.1:")
    assert failed["outcome"] == "unknown"
    assert refused["principal"] == "reader"
    assert (refused["method"], refused["reason"]) == ("Seal", "UNAUTHORIZED")
    assert refused["peer"].startswith("127.0.0.1:")


async def test_act_of_a_disconnected_caller_is_audited(there: Site) -> None:
    """G9: its outcome is unknown, since the act may have been applied."""
    there.core.holds.add("delete_log")
    with structlog.testing.capture_logs() as logs:
        asking = asyncio.ensure_future(
            there.ask(BY_REQUEST[messages.DeleteLog], messages.DeleteLog(LOG), "admin")
        )
        async with asyncio.timeout(DEADLINE_S):
            while not there.core.asked:
                await asyncio.sleep(0.01)
            asking.cancel()
            while not logs:
                await asyncio.sleep(0.01)
    there.core.release()
    (told,) = logs
    assert (told["event"], told["principal"], told["log"]) == ("act_failed", "admin", "ns/log")
    assert told["outcome"] == "unknown"


async def test_forwarded_acts_are_logged_under_the_callers_name(there: Site) -> None:
    """G9: only the first server knows the caller; the owner sees the first server's token."""

    class Peers:
        async def ask(self, request: Any, address: str, due: float) -> Any:
            return messages.RollLogAnswer(SegmentId(3))

    there.rest._routing._peers = Peers()
    roll = Route("roll_log", "POST", f"{PATH}:roll")
    with structlog.testing.capture_logs() as logs:
        for forward, status in (("auto", 200), ("never", 503)):
            there.core.failures["roll_log"].append(NotOwner(owner="b:1", owner_epoch=7))
            asked = replace(roll, headers={"log-forward": forward})
            assert (await there.http(asked, "admin")).status == status
    (told,) = logs
    assert (told["event"], told["principal"], told["method"]) == ("act_done", "admin", "RollLog")


async def test_logged_refusals_are_rate_limited(there: Site) -> None:
    now_ns = 0
    audit = AuditLog(lambda: now_ns)
    with structlog.testing.capture_logs() as logs:
        for _ in range(10_000):
            audit.refused(Unauthorized(), principal="")
        now_ns = 10_000_000_000
        audit.refused(Unauthorized(), principal="")
    assert len(logs) < 30
    assert logs[-1]["left_out"] + len(logs) == 10_001


async def test_flood_of_one_principal_hides_no_other_acts(there: Site) -> None:
    """G9: each principal has its own rate; acts with unknown outcome are always logged."""
    audit = AuditLog(lambda: 0)
    with structlog.testing.capture_logs() as logs:
        for _ in range(1000):
            audit.refused(Unauthorized(), principal="")
            audit.failed(InvalidRequest(), principal="noisy")
        audit.refused(Unauthorized(), principal="mallory")
        audit.failed(InvalidRequest(), principal="careless")
        for _ in range(100):
            audit.failed(ConnectionLost("who knows"), principal="noisy")
    told = [each["principal"] for each in logs]
    assert told.count("") < 30
    assert (told.count("mallory"), told.count("careless")) == (1, 1)
    assert 100 < told.count("noisy") < 130


async def test_log_level_does_not_silence_the_audit(there: Site, log: io.StringIO) -> None:
    """G9."""
    configure_logs(level="error", stream=log)
    await there.ask(BY_REQUEST[messages.RollLog], messages.RollLog(LOG), "admin")
    await there.http(Route("seal", "POST", f"{PATH}:seal"), "reader")
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert events == ["act_done", "access_refused"]


async def test_without_authentication_the_audit_obeys_the_log_level(
    there: Site, log: io.StringIO
) -> None:
    configure_logs(level="error", stream=log)
    CALLER.set(anybody())
    await AuthorizedService(there.core).ask(
        BY_REQUEST[messages.RollLog], messages.RollLog(LOG), 0.0
    )
    assert not log.getvalue()


async def test_tokens_are_never_logged_or_shown(there: Site, tmp_path: Path) -> None:
    """G6: not in events, responses, unexpected errors or representations."""
    told: list[str] = []
    with structlog.testing.capture_logs() as logs:
        for who in ("reader", "expired", "nobody"):
            for route in (Route("read", "GET", f"{PATH}/records"), Route("x", "GET", "/nope")):
                there.core.failures["read"].append(ValueError("a surprise"))
                answer = await there.http(route, who)
                told.append(repr(answer))
            there.core.failures["get_log"].append(ValueError("a surprise"))
            with pytest.raises(RollbookError) as caught:
                await there.ask(BY_REQUEST[messages.GetLog], messages.GetLog(LOG), who)
            told.append(repr(caught.value) + str(caught.value))
        caller = there.authenticator.admit(f"Bearer {token_of('reader')}")
        told.append(repr(Security(token=token_of("reader"))))
        told.append(repr(caller) + repr(vars(there.authenticator)))
    told.append(json.dumps(logs, default=repr))
    assert len(logs) > 5
    assert not [text for text in told if "canary" in text]


async def test_only_monitors_and_operators_see_metrics_and_settings(there: Site) -> None:
    there.rewrite({**PRINCIPALS, "prometheus": "monitor = true"})
    metrics, looked = Metrics(), list[str]()
    metrics.add("log", LogStats())

    def look() -> None:
        looked.append("at cursors")

    rest = await RestServer.start(
        there.core,
        HttpConfig(LOOPBACK),
        lambda _: "",
        authenticator=there.authenticator,
        shown=MetricsPage(metrics, look, load_log_settings(metadata="zk://zk1/ledgers").shown()),
    )
    client, found, settings = Client(rest.address), {}, {}
    for who in ("prometheus", "everything", "reader"):
        found[who] = await client.get("/metrics", authorization=f"Bearer {token_of(who)}")
        settings[who] = await client.get("/v1/settings", authorization=f"Bearer {token_of(who)}")
    for path in ("/metrics", "/v1/settings"):
        assert (await client.get(path)).status == 401
    await rest.close()
    for answers in (found, settings):
        assert {who: answer.status for who, answer in answers.items()} == {
            "prometheus": 200,
            "everything": 200,
            "reader": 403,
        }
    shown = {each["name"]: each for each in settings["prometheus"].json["settings"]}
    assert shown["metadata"]["value"] == "zk://zk1/ledgers"
    assert shown["drain_s"]["source"] == "default"
    assert b'rollbook_log_append_stage_seconds_bucket{stage="store",le="' in (
        found["prometheus"].body
    )
    assert len(looked) == 2
    answer = await there.http(Route("get_log", "GET", PATH), "prometheus")
    assert answer.status == 403, "the monitor right gives no right on logs"


# --- Certificates -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def of_server(authority: Authority) -> TlsFiles:
    return authority.issue("server", "IP:127.0.0.1")


async def _knock(site: Site, authority: Authority, shown: TlsFiles | None) -> tuple[str, str]:
    """Returns the outcome of one request at each door: "done", or why it failed."""
    heard = []
    certificate, key = (shown.certificate, shown.key) if shown else ("", "")
    channels = Channels(
        Security(True, authorities=authority.certificate, certificate=certificate, key=key)
    )
    call = channels.call(str(site.grpc.address), BY_REQUEST[messages.GetLog].path)
    try:
        await call(pack(messages.GetLog(LOG)).SerializeToString(), timeout=30)
        heard.append("done")
    except grpc.aio.AioRpcError as error:
        heard.append(error.code().name)
    await channels.close()
    context = client_context(authority.certificate, certificate=certificate, key=key)
    try:
        answer = await Client(site.rest.address, tls=context).get(PATH)
        heard.append("done" if answer.status == 200 else str(answer.status))
    except (OSError, ValueError, IndexError):  # The server closed the connection.
        heard.append("hung up")
    return heard[0], heard[1]


async def test_client_certificate_must_be_valid_and_known(
    there: Site, authority: Authority, of_server: TlsFiles
) -> None:
    """G2: a known name gets its rights, and an unknown name is refused.

    Without a certificate, or with an expired one, the handshake fails.
    """
    core, keeper = there.core, there.authenticator
    at_grpc = await GrpcServer.start(core, GrpcConfig(LOOPBACK, tls=of_server), keeper)
    at_rest = await RestServer.start(
        core, HttpConfig(LOOPBACK, tls=of_server), lambda _: "", authenticator=keeper
    )
    site = Site(core, there.path, keeper, at_grpc, at_rest, there.channels)
    known = authority.issue("known", "DNS:m.example")
    unknown = authority.issue("unknown", "DNS:x.example")
    over = authority.issue("over", "DNS:m.example", days=-1)
    try:
        assert await _knock(site, authority, known) == ("done", "done")
        assert await _knock(site, authority, unknown) == ("PERMISSION_DENIED", "401")
        assert await _knock(site, authority, over) == ("UNAVAILABLE", "hung up")
        assert await _knock(site, authority, None) == ("UNAVAILABLE", "hung up")
    finally:
        await at_rest.close()
        await at_grpc.close(0)


async def test_unknown_certificate_cannot_hold_a_call(
    there: Site, authority: Authority, of_server: TlsFiles
) -> None:
    """G8: a valid certificate that the access file does not name authenticates nobody."""
    config = GrpcConfig(LOOPBACK, tls=of_server)
    server = await GrpcServer.start(there.core, config, there.authenticator)
    address = str(server.address)
    codes = grpc.StatusCode

    async def say_nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    def security(name: str) -> Security:
        shown = authority.issue(name, f"DNS:{name}.example")
        return Security(True, authority.certificate, shown.certificate, shown.key)

    stranger, known = Channels(security("x")), Channels(security("m"))
    try:
        for method in (
            "/rollbook.v1.LogAdmin/GetLimits",
            "/rollbook.v1.LogService/ReadStream",
            "/rollbook.v1.LogService/AppendStream",
            "/grpc.health.v1.Health/Watch",
        ):
            silent = stranger.to(address).stream_stream(method)(say_nothing(), timeout=HELD_S)
            assert await silent.code() is codes.PERMISSION_DENIED, method
        asks_nothing = known.to(address).stream_unary("/rollbook.v1.LogAdmin/GetLimits")
        call = asks_nothing(iter([]), timeout=DEADLINE_S)
        assert await call.code() is codes.INVALID_ARGUMENT
        limits = known.call(address, BY_REQUEST[messages.GetLimits].path)
        assert await limits(b"", timeout=DEADLINE_S)
        for request in (messages.ReadStream(LOG, Earliest()), messages.WatchTail(LOG)):
            follow = known.to(address).unary_stream(BY_REQUEST[type(request)].path)
            events = follow(pack(request).SerializeToString(), timeout=DEADLINE_S)
            assert await events.read()
            events.cancel()
        watch = health_pb2_grpc.HealthStub(known.to(address)).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    finally:
        for each in (stranger, known):
            await each.close()
        await server.close(0)


async def test_rights_are_checked_again_when_the_message_arrives(
    there: Site, authority: Authority, of_server: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: the caller loses its rights between the start of the call and its message."""
    server = await GrpcServer.start(
        there.core, GrpcConfig(LOOPBACK, tls=of_server), there.authenticator
    )
    shown = authority.issue("m", "DNS:m.example")
    known = Channels(Security(True, authority.certificate, shown.certificate, shown.key))
    admit, was_let_in, may_speak = there.authenticator.admit, asyncio.Event(), asyncio.Event()

    def admit_and_tell(*shown: Any) -> Any:
        caller = admit(*shown)
        was_let_in.set()
        return caller

    async def speak() -> AsyncIterator[bytes]:
        await may_speak.wait()
        yield b""

    monkeypatch.setattr(there.authenticator, "admit", admit_and_tell)
    try:
        method = known.to(str(server.address)).stream_unary("/rollbook.v1.LogAdmin/GetLimits")
        call = method(speak(), timeout=DEADLINE_S)
        async with asyncio.timeout(DEADLINE_S):
            await was_let_in.wait()
        text = there.path.read_text().replace("m.example", "another.example")
        there.path.write_text(f"{text}\n# end\n")
        may_speak.set()
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not there.core.asked
    finally:
        await known.close()
        await server.close(0)


async def test_renewed_certificates_need_no_restart(
    there: Site, authority: Authority, tmp_path: Path
) -> None:
    """G3: both doors and this server's own client use them from the next connection on."""
    shown = TlsFiles(f"{tmp_path}/server.pem", f"{tmp_path}/server.key", f"{tmp_path}/ca.pem")

    def install(issued: TlsFiles) -> None:
        for source, target in zip(issued.all, shown.all, strict=True):
            Path(target).write_bytes(Path(source).read_bytes())

    other = tmp_path / "other"
    other.mkdir()
    renewed = Authority.make(other)
    old, new = (each.issue("m", "DNS:m.example,IP:127.0.0.1") for each in (authority, renewed))
    install(old)
    at_grpc = await GrpcServer.start(
        there.core, GrpcConfig(LOOPBACK, tls=shown), there.authenticator
    )
    at_rest = await RestServer.start(
        there.core, HttpConfig(LOOPBACK, tls=shown), lambda _: "", authenticator=there.authenticator
    )
    site = Site(there.core, there.path, there.authenticator, at_grpc, at_rest, there.channels)
    security = Security(True, shown.authorities, shown.certificate, shown.key)
    peers = GrpcPeers(lambda: security, lambda: [file_stamp(path) for path in shown.all])
    asked = (messages.GetLog(LOG), str(at_grpc.address))
    try:
        assert await _knock(site, authority, old) == ("done", "done")
        assert await peers.ask(*asked, asyncio.get_running_loop().time() + DEADLINE_S)
        install(new)
        assert await _knock(site, renewed, new) == ("done", "done")
        assert await _knock(site, authority, old) == ("UNAVAILABLE", "hung up")
        assert await peers.ask(*asked, asyncio.get_running_loop().time() + DEADLINE_S)
    finally:
        await peers.close()
        await at_rest.close()
        await at_grpc.close(0)


def test_network_address_needs_tls_and_authentication(of_server: TlsFiles) -> None:
    """G1: unless `insecure` is set."""
    everywhere = Address("0.0.0.0", 7400)
    for config in (GrpcConfig, HttpConfig):
        config(everywhere, None, of_server, knows_callers=True)
        config(everywhere, None, None, insecure=True)
        for tls, knows in ((of_server, False), (None, True)):
            with pytest.raises(BadConfig, match="open to the network"):
                config(everywhere, None, tls, knows_callers=knows)

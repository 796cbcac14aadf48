"""A list request asks only about logs that its caller may see."""

import asyncio

import pytest

from rollbook.api.access.authenticator import CALLER, anybody
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.access.core.access_file import Principal
from rollbook.api.access.core.grants import Grants
from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore


@pytest.fixture
def core() -> FakeCore:
    core = FakeCore(FakeCluster())
    for namespace in ("a", "b", "shop"):
        for number in range(3):
            core.cluster.make(f"{namespace}/log-{number}")
    return core


async def listed(core: FakeCore, grants: Grants) -> list[str]:
    caller = anybody()
    object.__setattr__(caller, "principal", Principal("somebody", grants))
    CALLER.set(caller)
    due = asyncio.get_running_loop().time() + 60
    found = await AuthorizedService(core).ask(
        BY_REQUEST[messages.ListLogs], messages.ListLogs(), due
    )
    return [str(log) for log in found.logs]


async def test_list_asks_nothing_if_no_log_is_visible(core: FakeCore) -> None:
    assert await listed(core, Grants()) == []
    assert core.asked == []


async def test_list_looks_up_logs_granted_by_full_name(core: FakeCore) -> None:
    assert await listed(core, Grants(read=("b/log-1", "nowhere/none"))) == ["b/log-1"]
    wanted = (LogName("b", "log-1"), LogName("nowhere", "none"))
    assert core.asked == [messages.Lookup(wanted)]


async def test_list_asks_only_visible_namespaces(core: FakeCore) -> None:
    grants = Grants(read=("shop/log-*", "a/log-2"), deny=("shop/log-0",))
    assert await listed(core, grants) == ["a/log-2", "shop/log-1", "shop/log-2"]
    assert {getattr(each, "namespace", "a") for each in core.asked} == {"a", "shop"}

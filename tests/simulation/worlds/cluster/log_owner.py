"""A named log on bookies that are lost, wiped and drained: its owner is a whole log server, as in world `logs`.

Somebody appends numbered records to it, one after the other, each once. When the chaos is over the log takes another
one, and is read: what was acked is there once, in order, and of what nobody answered for there is at most one copy.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from rollbook.logservice.core.record_block import Block, pack_block
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.messages import Append, Read
from rollbook.logservice.position_syntax import AtOffset
from rollbook.logservice.service import LogService
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.errors import Outcome, QuorumTimeout, RollbookError, ServerUnreachable
from rollbook.proto.ports import MetadataStore
from tests.simulation.kernel.metadata import Mail
from tests.simulation.kernel.world import Node, World
from tests.simulation.worlds.cluster import words
from tests.simulation.worlds.logs.servers import Live, Servers
from tests.simulation.worlds.logs.words import address_of

T = TypeVar("T")

RECORDS: Final = "records"
_LOG: Final = LogName("test", "a")
_ATTEMPT_S: Final = 3.0
_PAUSE_S: Final = 0.2


class LogOwner:
    def __init__(
        self,
        world: World,
        *,
        tell: Callable[[str], None],
        on_broken: Callable[[str, str], None],
        live: Live,
    ) -> None:
        self._world, self._tell, self._break = world, tell, on_broken
        addresses = {words.LOG_OWNER: address_of(words.LOG_OWNER)}
        self._servers = Servers(world, addresses, mail=Mail(), tell=tell, live=live)
        self._sent = 0
        self._acked: list[str] = []  # In the order of their offsets.
        self._unanswered: dict[str, None] = {}  # They may be there.

    async def make_log(self, store: MetadataStore, cluster: Cluster, node: Node) -> None:
        nodes = LogMetadataStore(store, cluster, node.clock, node.randomness)
        await nodes.start()
        await nodes.create(_LOG, LogConfig())

    def start(self) -> None:
        self._servers.start()

    def start_again(self) -> None:
        self._servers.start_all_again()

    async def produce(self, _: Node) -> None:
        while True:
            await self._append()
            await asyncio.sleep(_PAUSE_S)

    async def finish(self, _: Node) -> None:
        """The log goes on, and has all that it has acked; then its server stops."""
        while not await self._append():
            await asyncio.sleep(_PAUSE_S)
        self._check(await self._read())
        self._servers.is_over = True
        self._servers.stop(words.LOG_OWNER)
        while self._world.node(words.LOG_OWNER).is_running:
            await asyncio.sleep(_PAUSE_S)

    async def _append(self) -> bool:
        self._sent += 1
        value = f"record {self._sent}"
        block = bytes(pack_block([value.encode()]))
        self._unanswered[value] = None
        try:
            ack = await self._ask(lambda service, due: service.append(Append(_LOG, block), due))
        except RollbookError as error:
            self._tell(f"{value}: {error!r}")
            if error.outcome is not Outcome.UNKNOWN:
                del self._unanswered[value]
            return False
        self._tell(f"{value} is acked at {ack.first_offset}")
        self._acked.append(value)
        del self._unanswered[value]
        return True

    async def _read(self) -> list[str]:
        found: list[str] = []
        at = Offset(0)
        while True:
            request = Read(_LOG, AtOffset(at))
            try:
                answer = await self._ask(lambda service, due: service.read(request, due))  # noqa: B023
            except RollbookError as error:
                self._tell(f"reading at {at} fails: {error!r}")
                await asyncio.sleep(_PAUSE_S)
                continue
            for block in map(Block, answer.blocks):
                for offset, record in enumerate(block.records(), block.base_offset):
                    if answer.first_offset <= offset < answer.next_offset:
                        found.append(record.value.decode())
            at = answer.next_offset
            if at >= answer.tail and not answer.is_tail_uncertain:
                return found

    def _check(self, found: list[str]) -> None:
        known = [each for each in found if each not in self._unanswered]
        twice = [each for each in self._unanswered if found.count(each) > 1]
        if known != self._acked or twice:
            lacking = [each for each in self._acked if each not in found]
            what = f"lacks {lacking}, has {known} for {self._acked}, and {twice} twice"
            self._break(RECORDS, f"the log {what}")

    async def _ask(self, question: Callable[[LogService, float], Coroutine[Any, Any, T]]) -> T:
        """In the owner's process, which may die before it answers."""
        service = self._servers.find(words.LOG_OWNER)
        if service is None:
            raise ServerUnreachable("the owner does not serve")
        loop = self._world.loop
        answered: asyncio.Future[T] = loop.create_future()

        async def answer() -> None:
            try:
                found = await question(service, loop.time() + _ATTEMPT_S)
            except RollbookError as error:
                if not answered.done():
                    answered.set_exception(error)
            else:
                if not answered.done():
                    answered.set_result(found)

        context = self._world.node(words.LOG_OWNER).context.copy()
        loop.create_task(answer(), context=context)
        try:
            async with asyncio.timeout(2 * _ATTEMPT_S):
                return await answered
        except TimeoutError:
            raise QuorumTimeout("the owner does not answer") from None

"""A client that does the plan's steps with the product's codec, and reports all of it to the checker.

It has one connection to each bookie in each version, made when first needed and made again after it
was lost. It retries nothing: whatever had no answer then has an unknown outcome. But like any writer it
has a bounded number of adds on their way, and waits for a bookie that cannot be reached: else a run whose
connections break early would be of nothing but unknown outcomes.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.errors import (
    ConnectionLost,
    EntryStateUnknown,
    NoSuchLedger,
    Outcome,
    Unavailable,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Address, Transport
from rollbook.proto.wire import v2_layout
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    ListEntries,
    ListEntriesReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Reply,
    Request,
    WriteLac,
    WriteLacReply,
)
from tests.simulation.checkers.bookie import ANSWERS, Asked, BookieChecker, Sent
from tests.simulation.history import NEVER, Append, History
from tests.support.bookie_client import KEY, PASSWORD, BookieClient
from tests.support.entries import pack_entry

PORT: Final = 3181
CONNECT_S: Final = 1.0
_CONNECT_AGAIN_S: Final = 0.05
_RESTORED_AT_ONCE: Final = 8
_AGAIN_ODDS: Final = (0.03, 0.03, 0.3)  # With many, an entry lies in logs of several ages.
_WINDOWS: Final = (1, 1, 8)  # Adds on their way to one bookie, if it has not yet answered them.
_SIZES: Final = (0, 30, 300, 3000)
_EVEN_SIZES: Final = (0, 30, 300)
_BATCH_BYTES: Final = 32 * 1024

OnBroken = Callable[[str, str], None]


def digest_of(ledger_id: int) -> LedgerDigest:
    kinds = list(DigestType)
    return LedgerDigest(kinds[ledger_id % len(kinds)], PASSWORD, LedgerId(ledger_id))


@dataclass
class Sums:
    """What all clients of a run share."""

    checker: BookieChecker
    history: History
    chance: random.Random
    on_broken: OnBroken
    process_of: Callable[[str], int]
    """The number of the process that runs on a machine."""
    next_entry: dict[tuple[str, int], int] = field(default_factory=dict)
    payloads: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    unanswered: "dict[PendingRequest, None]" = field(default_factory=dict)


class PendingRequest:
    """A question that has no answer yet."""

    def __init__(self, link: "Link", what: str, step: str) -> None:
        self.link = link
        self._what = what
        self._step = step

    def __str__(self) -> str:
        return f"{self.link.asker} for {self.link.bookie}: {self._what} {self._step}"

    def is_due(self, process_of: Callable[[str], int]) -> bool:
        """Whether those who ask and those who are asked have lived on."""
        link = self.link
        return link.process == process_of(link.bookie) and (
            link.asker_process == process_of(link.asker)
        )


@dataclass
class Link:
    bookie: str
    client: BookieClient
    process: int  # Which it was that took the connection,
    asker: str
    asker_process: int  # and which one asked for it.
    sent: dict[tuple[int, int], list[tuple[Sent, Append, PendingRequest]]] = field(
        default_factory=dict
    )
    reading: dict[tuple[int, int], None] = field(default_factory=dict)

    @property
    def adds_under_way(self) -> int:
        return sum(map(len, self.sent.values()))


class Client:
    def __init__(self, name: str, transport: Transport, sums: Sums) -> None:
        self._name = name
        self._transport = transport
        self._sums = sums
        self._links: dict[tuple[str, int], Link] = {}
        self._connecting: dict[tuple[str, int], asyncio.Lock] = {}
        self._adding: dict[str, asyncio.Lock] = {}  # By bookie.
        self._has_news = asyncio.Event()
        self._window = sums.chance.choice(_WINDOWS)
        self._again_odds = sums.chance.choice(_AGAIN_ODDS)
        # Answered, but not durable yet; by bookie, ledger and process: what another process answered, which has failed to
        # sync it, no force of the next one is about.
        self._deferred: dict[tuple[str, int, int], list[Sent]] = {}

    async def do(self, step: str) -> None:
        verb, bookie, ledger, *rest = step.split()
        ledger_id = int(ledger)
        version = 2 if "v2" in rest or verb == "batch" else 3
        count = int(rest[0]) if rest and rest[0].isdecimal() else 1
        if verb in ("add", "defer", "mend"):
            async with self._adding.setdefault(bookie, asyncio.Lock()):
                self.add(
                    await self._link_with_room(bookie, version),
                    ledger_id,
                    count,
                    is_recovery=verb == "mend",
                    is_deferred=verb == "defer",
                )
        elif verb == "even":
            await self._add_evenly(bookie, version, ledger_id, count)
        elif link := await self._link(bookie, version):
            await self._question(link, verb, ledger_id, count)

    async def _add_evenly(self, bookie: str, version: int, ledger_id: int, count: int) -> None:
        """New entries of one size, as most writers send them, and then a batch of them."""
        async with self._adding.setdefault(bookie, asyncio.Lock()):
            link = await self._link_with_room(bookie, version)
            first = self._sums.next_entry.get((bookie, ledger_id), 0)
            size = self._sums.chance.choice(_EVEN_SIZES)
            appends = self.add(link, ledger_id, count, size=size)
        while any(append.returned == NEVER for append in appends):
            await asyncio.sleep(0.01)
        reader = await self._link(bookie, v2_layout.VERSION)
        if reader is not None:
            try:
                await self._batch(reader, ledger_id, first, count)
            except ConnectionLost:
                pass

    async def _question(self, link: Link, verb: str, ledger_id: int, count: int) -> None:
        try:
            match verb:
                case "force":
                    await self._force(link, ledger_id)
                case "fence" | "read":
                    await self._read(link, ledger_id, is_fencing=verb == "fence")
                case "batch":
                    await self._some_batch(link, ledger_id)
                case "list":
                    await self.list_entries(link, ledger_id)
                case "poll":
                    await self._poll(link, ledger_id, timeout_ms=count)
                case "lac":
                    await self._write_lac(link, ledger_id)
                case "ask-lac":
                    await self._read_lac(link, ledger_id)
        except ConnectionLost:
            pass  # Nobody knows; the checker takes it so.

    def close(self) -> None:
        for link in self._links.values():
            link.client.abort()

    # --- Connections --------------------------------------------------------------------------

    async def _link(self, bookie: str, version: int) -> Link | None:
        key = (bookie, version)
        async with self._connecting.setdefault(key, asyncio.Lock()):
            link = self._links.get(key)
            if link is None or link.client.lost.done():
                link = await self._connect(bookie, version)
                if link is not None:
                    self._links[key] = link
            return link

    async def _link_with_room(self, bookie: str, version: int) -> Link:
        while True:
            link = await self._link(bookie, version)
            if link is None:
                await asyncio.sleep(_CONNECT_AGAIN_S)
            elif self._adds_under_way(bookie) < self._window:
                return link
            else:
                self._has_news.clear()
                await self._has_news.wait()

    def _adds_under_way(self, bookie: str) -> int:
        return sum(link.adds_under_way for link in self._links.values() if link.bookie == bookie)

    async def _connect(self, bookie: str, version: int) -> Link | None:
        try:
            _, client = await self._transport.connect(
                lambda: BookieClient(version), Address(bookie, PORT), CONNECT_S
            )
        except Unavailable:
            return None
        assert isinstance(client, BookieClient)
        processes = self._sums.process_of
        link = Link(bookie, client, processes(bookie), self._name, processes(self._name))
        client.on_adds = lambda replies: self._on_adds(link, replies)
        client.lost.add_done_callback(lambda _: self._on_lost(link))
        return link

    def _on_lost(self, link: Link) -> None:
        for waiting in [w for w in self._sums.unanswered if w.link is link]:
            del self._sums.unanswered[waiting]
        for sent in link.sent.values():
            for _, append, _ in sent:
                self._sums.history.on_unknown(append, "the connection was lost")
        link.sent.clear()
        self._has_news.set()

    async def _ask(self, link: Link, what: str, request: Request) -> Reply:
        waiting = PendingRequest(link, what, f"{request}")
        self._sums.unanswered[waiting] = None
        call = self._sums.history.call(what)
        try:
            reply = await link.client.ask(request)
        except ConnectionLost:
            raise
        finally:
            self._sums.unanswered.pop(waiting, None)
        self._sums.history.on_answered(call)
        return reply

    # --- Adds ---------------------------------------------------------------------------------

    def add(
        self,
        link: Link,
        ledger_id: int,
        count: int,
        *,
        is_recovery: bool = False,
        is_deferred: bool = False,
        size: int | None = None,
        entry_ids: Iterable[int] | None = None,
    ) -> list[Append]:
        """In one piece, as a writer that is busy sends them. With `size` all are new, and of that size.

        With `entry_ids` these, each once.
        """
        sums, chance, bookie = self._sums, self._sums.chance, link.bookie
        if link.client.lost.done():
            return []
        digest = digest_of(ledger_id)
        writer = link.client.ledger(ledger_id, digest.kind, PASSWORD)
        is_urgent = chance.random() < 0.1
        frames: list[bytes] = []
        appends: list[Append] = []
        is_new = size is not None
        picked = (
            self._pick_entry(bookie, ledger_id, is_recovery, is_new=is_new) for _ in range(count)
        )
        for entry_id in picked if entry_ids is None else entry_ids:
            if link.sent.get((ledger_id, entry_id)):
                continue  # Answers to adds are matched by these ids.
            is_again = (
                bookie,
                ledger_id,
                entry_id,
            ) in sums.payloads  # Then its LAC tells which it is.
            is_usual = chance.random() < (0.2 if is_again else 0.7)
            lac = entry_id - 1 if is_usual else chance.randint(-1, entry_id - 1)
            if is_deferred:  # A LAC is of what is durable.
                lac = min(lac, sums.checker.known_lac(bookie, ledger_id))
            payload = self._payload(bookie, ledger_id, entry_id, size)
            frames.append(
                writer.pack(
                    entry_id,
                    lac,
                    payload,
                    is_recovery=is_recovery,
                    is_high_priority=is_urgent,
                    is_sync_deferred=is_deferred,
                )
            )
            body = pack_entry(digest, EntryId(entry_id), EntryId(lac), 0, payload)
            sent = sums.checker.on_sent(
                bookie, ledger_id, body, is_recovery=is_recovery, is_deferred=is_deferred
            )
            append = sums.history.append(self._name, f"{bookie}:{ledger_id}:{entry_id}:{sent.at}")
            waiting = PendingRequest(link, "mend" if is_recovery else "add", str(entry_id))
            sums.unanswered[waiting] = None
            link.sent.setdefault((ledger_id, entry_id), []).append((sent, append, waiting))
            appends.append(append)
        link.client.send(b"".join(frames))
        return appends

    def _pick_entry(
        self, bookie: str, ledger_id: int, is_recovery: bool, *, is_new: bool = False
    ) -> int:
        following = self._sums.next_entry.get((bookie, ledger_id), 0)
        again_odds = 0.8 if is_recovery else self._again_odds
        if following and not is_new and self._sums.chance.random() < again_odds:
            return self._sums.chance.randrange(following)
        self._sums.next_entry[bookie, ledger_id] = following + 1
        return following

    def _payload(
        self, bookie: str, ledger_id: int, entry_id: int, size: int | None = None
    ) -> bytes:
        """Written again, an entry says the same."""
        payloads, chance = self._sums.payloads, self._sums.chance
        key = (bookie, ledger_id, entry_id)
        if key not in payloads:
            payloads[key] = chance.randbytes(chance.choice(_SIZES) if size is None else size)
        return payloads[key]

    def _on_adds(self, link: Link, replies: AddReplies) -> None:
        sums = self._sums
        self._has_news.set()
        for entry_id in replies.entry_ids:
            sent = link.sent.get((replies.ledger_id, entry_id))
            if not sent:
                text = f"{link.bookie} answers an add of entry {entry_id}, which was not asked"
                sums.on_broken(ANSWERS, text)
                return
            add, append, waiting = sent.pop(0)
            sums.unanswered.pop(waiting, None)
            sums.checker.on_add_answer(add, replies.error)
            if replies.error is None:
                sums.history.on_applied(append, entry_id)
                if add.is_deferred:
                    key = link.bookie, add.ledger_id, link.process
                    self._deferred.setdefault(key, []).append(add)
            elif replies.error.outcome is Outcome.NOT_APPLIED:
                sums.history.on_refused(append)
            else:
                sums.history.on_unknown(append, replies.error.__name__)

    # --- Questions ----------------------------------------------------------------------------

    async def _force(self, link: Link, ledger_id: int) -> None:
        checker = self._sums.checker
        asked = checker.on_asked(link.bookie, ledger_id)
        answered = self._deferred.pop((link.bookie, ledger_id, link.process), [])
        covered = [add for add in answered if add.at < asked.at]
        reply = await self._ask(link, "force", ForceLedger(LedgerId(ledger_id)))
        assert isinstance(reply, ForceLedgerReply)
        if reply.error is None and link.process == self._sums.process_of(link.bookie):
            checker.on_forced(covered)

    async def _read(self, link: Link, ledger_id: int, *, is_fencing: bool) -> None:
        chance = self._sums.chance
        known = self._sums.next_entry.get((link.bookie, ledger_id), 0)
        entry_id = NO_ENTRY if chance.random() < 0.3 else chance.randint(0, known)
        await self.read(link, ledger_id, entry_id, is_fencing=is_fencing)

    async def read(
        self, link: Link, ledger_id: int, entry_id: int, *, is_fencing: bool = False
    ) -> None:
        if link.client.version == v2_layout.VERSION and (ledger_id, entry_id) in link.reading:
            return  # It tells answers apart by these ids: which is the fence's nobody would know.
        link.reading[ledger_id, entry_id] = None
        asked = self._sums.checker.on_asked(link.bookie, ledger_id, is_fencing=is_fencing)
        request = EntryRead(
            LedgerId(ledger_id),
            EntryId(entry_id),
            ledger_key=KEY if is_fencing else None,
            fence=is_fencing,
        )
        reply = await self._ask(link, "fence" if is_fencing else "read", request)
        link.reading.pop((ledger_id, entry_id), None)
        self._on_read(asked, entry_id, reply)

    def _on_read(self, asked: Asked, entry_id: int, reply: Reply, *, is_poll: bool = False) -> None:
        checker = self._sums.checker
        assert isinstance(reply, ReadReply)
        if reply.error is not None:
            checker.on_failure(asked, entry_id, reply.error)
            return
        if reply.body is not None:
            checker.on_entry(asked, entry_id, reply.body)
        if reply.last_add_confirmed is not None:
            checker.on_lac(asked, reply.last_add_confirmed, is_durable=not is_poll)

    async def _some_batch(self, link: Link, ledger_id: int) -> None:
        chance, known = self._sums.chance, self._sums.next_entry.get((link.bookie, ledger_id), 0)
        await self._batch(link, ledger_id, chance.randint(0, known), chance.choice((0, 1, 5, 100)))

    async def _batch(self, link: Link, ledger_id: int, first: int, count_max: int) -> None:
        sums = self._sums
        asked = sums.checker.on_asked(link.bookie, ledger_id)
        batch = BatchRead(
            LedgerId(ledger_id), EntryId(first), asked.at, count_max, bytes_max=_BATCH_BYTES
        )
        reply = await self._ask(link, "batch", batch)
        assert isinstance(reply, BatchReadReply)
        if reply.error is not None:
            sums.checker.on_failure(asked, first, reply.error)
        for entry_id, body in enumerate(reply.bodies, first):
            sums.checker.on_entry(asked, entry_id, body)

    async def list_entries(self, link: Link, ledger_id: int) -> None:
        checker = self._sums.checker
        asked = checker.on_asked(link.bookie, ledger_id)
        reply = await self._ask(link, "list", ListEntries(LedgerId(ledger_id)))
        assert isinstance(reply, ListEntriesReply)
        if reply.error is not None:
            checker.on_failure(asked, NO_ENTRY, reply.error)
        elif reply.entries is not None:
            known = self._sums.next_entry.get((link.bookie, ledger_id), 0)
            listed = [
                entry_id for entry_id in range(known + 1) if EntryId(entry_id) in reply.entries
            ]
            if len(listed) != reply.entries.count:
                self._sums.on_broken(ANSWERS, f"{link.bookie} lists entries that nobody wrote")
            checker.on_listed(asked, listed)

    async def _poll(self, link: Link, ledger_id: int, timeout_ms: int) -> None:
        sums = self._sums
        asked = sums.checker.on_asked(link.bookie, ledger_id)
        known = sums.checker.known_lac(link.bookie, ledger_id)
        previous = max(NO_ENTRY, known - sums.chance.choice((0, 0, 1)))
        request = EntryRead(
            LedgerId(ledger_id),
            NO_ENTRY,
            previous_lac=EntryId(previous),
            timeout_ms=timeout_ms,
            piggyback=True,
            following_bytes_max=_BATCH_BYTES,
        )
        reply = await self._ask(link, "poll", request)
        assert isinstance(reply, ReadReply)
        entry_id = reply.entry_id if reply.body is not None else previous + 1
        self._on_read(asked, entry_id, reply, is_poll=True)
        for behind, body in enumerate(reply.following, entry_id + 1):
            sums.checker.on_entry(asked, behind, body)
            if reply.last_add_confirmed is None or behind > reply.last_add_confirmed:
                sums.on_broken(ANSWERS, f"{link.bookie} brings what it does not tell is confirmed")

    async def _write_lac(self, link: Link, ledger_id: int) -> None:
        sums = self._sums
        lac = sums.chance.randint(0, sums.next_entry.get((link.bookie, ledger_id), 0))
        asked = sums.checker.on_lac_sent(link.bookie, ledger_id, lac)
        packet = digest_of(ledger_id).pack_lac(EntryId(lac))
        request = WriteLac(LedgerId(ledger_id), EntryId(lac), KEY, packet)
        reply = await self._ask(link, "lac", request)
        assert isinstance(reply, WriteLacReply)
        if reply.error is None:
            sums.checker.on_lac_written(asked, lac)
        else:
            sums.checker.on_failure(asked, None, reply.error)

    async def _read_lac(self, link: Link, ledger_id: int) -> None:
        checker = self._sums.checker
        asked = checker.on_asked(link.bookie, ledger_id)
        reply = await self._ask(link, "ask-lac", ReadLac(LedgerId(ledger_id)))
        assert isinstance(reply, ReadLacReply)
        if reply.error is not None:
            checker.on_failure(asked, None, reply.error)
            return
        lac = digest_of(ledger_id).unpack_lac(reply.packet) if reply.packet else None
        checker.on_packet(asked, lac)
        if reply.last_entry:
            checker.on_entry(asked, NO_ENTRY, reply.last_entry)

    async def restore(self, bookie: str, ledger_id: int, *, lists: bool) -> list[int] | None:
        """A repair's copies: of all entries that there ever were those that are not listed, or all; those that are
        there then. None if it failed.
        """
        if (link := await self._link(bookie, 3)) is None:
            return None
        wanted, listed = self._sums.checker.entry_ids(bookie, ledger_id), list[int]()
        try:
            if lists:
                reply = await self._ask(link, "list", ListEntries(LedgerId(ledger_id)))
                assert isinstance(reply, ListEntriesReply)
                if reply.error is None and reply.entries is not None:
                    entries = reply.entries
                    listed = [each for each in wanted if EntryId(each) in entries]
                elif reply.error not in (NoSuchLedger, EntryStateUnknown):
                    return None
            missing = [each for each in wanted if each not in listed]
            for start in range(0, len(missing), _RESTORED_AT_ONCE):
                some = missing[start : start + _RESTORED_AT_ONCE]
                appends = self.add(link, ledger_id, 0, is_recovery=True, entry_ids=some)
                while any(append.returned == NEVER for append in appends):
                    if link.client.lost.done():
                        return None
                    await asyncio.sleep(0.01)
                applied = [append for append in appends if append.outcome is Outcome.APPLIED]
                if len(applied) < len(some):
                    return None
        except ConnectionLost:
            return None
        return wanted

    # --- The reckoning ------------------------------------------------------------------------

    async def audit(self, bookie: str, ledger_id: int) -> bool:
        """Asks for everything that there ever was; whether all was answered."""
        link = await self._link(bookie, 3)
        if link is None:
            return False
        try:
            for entry_id in self._sums.checker.entry_ids(bookie, ledger_id):
                await self.read(link, ledger_id, entry_id)
            await self.read(link, ledger_id, NO_ENTRY)
            await self.list_entries(link, ledger_id)
            await self._read_lac(link, ledger_id)
            if self._sums.checker.must_refuse(bookie, ledger_id):
                for append in self.add(link, ledger_id, 1):
                    while append.returned == NEVER:
                        await asyncio.sleep(0.01)
        except ConnectionLost:
            return False
        return True

"""`Ledgers` with real bookies on real sockets and disks, in this process."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.copy_comparison import CopyState, LedgerVerification
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.open_client import connect
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import (
    AppendUnsettled,
    EntryUnavailable,
    InvalidRequest,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryIncomplete,
    Unauthorized,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.runtime.tls import TlsFiles, client_context
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.v3_adds import V3AddPacker
from tests.messages import raises_message
from tests.support.ledger_cluster import LocalCluster
from tests.unit.ledger.scripted_bookie import Listening

PATIENCE_S = 30.0
HMAC = DigestType.HMAC
VERSIONS = pytest.mark.parametrize("version", [2, 3])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path) as cluster:
        yield cluster


def client(version: int = 3) -> ClientConfig:
    return ClientConfig(protocol_version=version)


async def payloads_of(
    ledgers: Ledgers, ledger_id: int, password: bytes | None = None
) -> list[bytes]:
    async with await ledgers.open(ledger_id, password) as reader:
        return [entry.payload async for entry in reader.read()]


def letters(count: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]


@VERSIONS
@pytest.mark.parametrize("digest", list(DigestType), ids=lambda d: d.name)
@pytest.mark.parametrize("ensemble", [2, 3], ids=["whole", "striped"])
async def test_ledger_lifecycle_from_create_to_delete(
    cluster: LocalCluster, version: int, digest: DigestType, ensemble: int
) -> None:
    wanted = letters(300)
    async with asyncio.timeout(PATIENCE_S), cluster.connect(client(version)) as ledgers:
        writer = await ledgers.create(
            ensemble=ensemble,
            write=2,
            ack=2,
            digest=digest,
            password=b"secret",
            custom={"application": b"test", "blob": b"\x00\xff"},
        )
        async with writer:
            ids = [writer.append(payload) for payload in wanted[:100]]
            assert await asyncio.gather(*ids) == list(range(100))
            assert await writer.append_many(wanted[100:200]) == range(100, 200)

            tailer = await ledgers.open_tailing(writer.ledger_id, b"secret")
            seen: list[bytes] = []

            async def follow() -> None:
                async for news in tailer.follow():
                    seen.extend(entry.payload for entry in news.entries)

            following = asyncio.create_task(follow())
            while len(seen) < 200:  # Includes the last entry, although no entry follows it.
                await asyncio.sleep(0.01)
            for payload in wanted[200:]:
                writer.append(payload)
            await writer.flush()
        await following
        assert seen == wanted

        async with await ledgers.open(writer.ledger_id, b"secret") as reader:
            metadata = reader.metadata
            assert metadata.state is LedgerState.CLOSED
            assert (metadata.last_entry, metadata.length) == (299, sum(map(len, wanted)))
            assert dict(metadata.custom) == {"application": b"test", "blob": b"\x00\xff"}
            entries = [entry async for entry in reader.read()]
            assert [entry.payload for entry in entries] == wanted
            part = [entry.entry_id async for entry in reader.read(EntryId(50), EntryId(59))]
            assert part == list(range(50, 60))

        await ledgers.delete(writer.ledger_id, b"secret")
        with pytest.raises(NoSuchLedger):
            await ledgers.open(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            await ledgers.delete(writer.ledger_id)
        assert [each async for each in ledgers.list()] == []


@VERSIONS
@pytest.mark.parametrize("ensemble", [2, 3], ids=["whole", "striped"])
async def test_recovery_keeps_all_entries_of_a_stopped_writer(
    cluster: LocalCluster, version: int, ensemble: int
) -> None:
    wanted = letters(500)
    async with asyncio.timeout(PATIENCE_S), cluster.connect(client(version)) as ledgers:
        writer = await ledgers.create(ensemble=ensemble, write=2, ack=2)
        await writer.append_many(wanted)
        await writer.stop()
        async with await ledgers.open_recover(writer.ledger_id) as reader:
            assert reader.metadata.is_closed
            assert [entry.payload async for entry in reader.read()] == wanted


@VERSIONS
async def test_recovery_fences_a_running_writer(cluster: LocalCluster, version: int) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.connect(client(version)) as ledgers:
        writer = await ledgers.create()
        await writer.append_many(letters(10))
        async with await ledgers.open_recover(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == 9
        with pytest.raises(AppendUnsettled):
            await writer.append(b"late")
        with pytest.raises(LedgerFenced):
            writer.append(b"later")
        with pytest.raises(AppendUnsettled):
            await writer.close()
        assert await payloads_of(ledgers, writer.ledger_id) == letters(10)


async def test_deleting_a_ledger_fences_its_writer(cluster: LocalCluster) -> None:
    """LG1: otherwise it would go on confirming entries that nobody can read."""
    async with asyncio.timeout(PATIENCE_S), cluster.connect() as ledgers:
        writer = await ledgers.create()
        await writer.append(b"first")
        await ledgers.delete(writer.ledger_id)
        with pytest.raises(AppendUnsettled):
            await writer.append(b"second")
        with pytest.raises(AppendUnsettled):
            await writer.close()


async def test_delete_without_fencing_quorum_needs_force(tmp_path: Path) -> None:
    """LG1."""
    quick = ClientConfig(read_deadline_s=0.5)
    async with (
        LocalCluster(tmp_path) as cluster,
        cluster.connect() as others,
        cluster.connect(quick) as ledgers,
    ):
        async with asyncio.timeout(PATIENCE_S):
            writer = await others.create()
            await writer.append(b"first")
            await cluster.stop("bk-1")
            await cluster.stop("bk-2")
            with pytest.raises(RecoveryIncomplete):
                await ledgers.delete(writer.ledger_id)
            assert (await ledgers.metadata(writer.ledger_id)).metadata.state is (
                LedgerState.IN_RECOVERY
            )
            await ledgers.delete(writer.ledger_id, is_forced=True)
            assert [each async for each in ledgers.list()] == []


async def test_wrong_password_is_refused_by_open_and_delete(cluster: LocalCluster) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.connect() as ledgers:
        async with await ledgers.create(password=b"right") as writer:
            await writer.append(b"x")
        for work in (ledgers.open, ledgers.open_recover, ledgers.open_tailing, ledgers.delete):
            with pytest.raises(Unauthorized):
                await work(writer.ledger_id, b"wrong")
        with pytest.raises(InvalidRequest):
            await ledgers.open(writer.ledger_id, digest=DigestType.HMAC)
        assert await payloads_of(ledgers, writer.ledger_id, b"right") == [b"x"]
        assert await payloads_of(ledgers, writer.ledger_id) == [b"x"]


async def test_invalid_create_requests_are_refused(cluster: LocalCluster) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.connect() as ledgers:
        with pytest.raises(NotEnoughBookies):
            await ledgers.create(ensemble=4)
        with pytest.raises(InvalidRequest):
            await ledgers.create(ensemble=3, write=2, ack=3)
        async with await ledgers.create(ledger_id=2**40) as writer:
            await writer.append(b"x")
        with pytest.raises(NodeExists):
            await ledgers.create(ledger_id=2**40)
        assert await payloads_of(ledgers, 2**40) == [b"x"]
        async with await ledgers.create() as empty:
            pass
        assert await payloads_of(ledgers, empty.ledger_id) == []
        assert [each async for each in ledgers.list()] == sorted((2**40, empty.ledger_id))
        assert [each async for each in ledgers.list(empty.ledger_id + 1)] == [2**40]


async def test_stopped_bookie_is_replaced_and_a_started_one_found(tmp_path: Path) -> None:
    names = [f"bk-{number}" for number in range(1, 5)]
    async with LocalCluster(tmp_path, names) as cluster, cluster.connect() as ledgers:
        async with asyncio.timeout(PATIENCE_S):
            async with await ledgers.create() as writer:
                await writer.append_many(letters(100))
                gone = writer.metadata.fragments[0].ensemble[1]
                await cluster.stop(gone)
                while len(writer.metadata.fragments) < 2:  # Two of three acks suffice.
                    await writer.append_many(letters(10))
                last_entry = writer.last_appended
            ensembles = [fragment.ensemble for fragment in writer.metadata.fragments]
            assert len(ensembles) == 2
            assert gone not in ensembles[1]
            assert len(await payloads_of(ledgers, writer.ledger_id)) == last_entry + 1
            await cluster.start(gone)
            await ledgers.until_writable(4, PATIENCE_S)


def _tasks_of_clients(before: set[asyncio.Task[object]]) -> list[str]:
    """Select clients' tasks by their source file: bookies in this process have tasks, too."""
    found = []
    for task in asyncio.all_tasks() - before:
        frames = task.get_stack(limit=1)
        path = frames[0].f_code.co_filename if frames else ""
        if "/ledger/" in path or "bookie_watcher" in path:
            found.append(f"{task.get_name()} {path}")
    return found


async def test_failed_open_leaves_no_tasks(tmp_path: Path) -> None:
    quick = ClientConfig(read_deadline_s=0.3)
    async with LocalCluster(tmp_path) as cluster, cluster.connect(quick) as ledgers:
        async with asyncio.timeout(PATIENCE_S):
            writer = await ledgers.create()
            await writer.append(b"x")
            await writer.stop()
            before = asyncio.all_tasks()
            for name in list(cluster.bookies):
                await cluster.stop(name)
            with pytest.raises(EntryUnavailable):
                await ledgers.open(writer.ledger_id)
            assert not _tasks_of_clients(before)


async def test_closing_the_client_leaves_no_tasks(cluster: LocalCluster) -> None:
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE_S):
        ledgers = await cluster.connect()
        writer = await ledgers.create()
        await writer.append(b"x")
        pending = writer.append(b"y")
        tailer = await ledgers.open_tailing(writer.ledger_id)
        tailing = tailer.tail()
        assert (await anext(tailing)).payload == b"x"
        await ledgers.close()
        await asyncio.gather(pending, return_exceptions=True)
        assert not _tasks_of_clients(before)
        for work in (ledgers.create(), ledgers.open(writer.ledger_id), ledgers.reserve()):
            with pytest.raises((InvalidRequest, MetadataUnavailable)):
                await work
        await ledgers.close()
        async with cluster.connect() as again, await again.open_recover(writer.ledger_id) as reader:
            assert reader.last_add_confirmed in (0, 1)


async def test_reserved_ledger_is_claimed_by_one_client_only(cluster: LocalCluster) -> None:
    """LG2."""
    async with (
        asyncio.timeout(PATIENCE_S),
        cluster.connect() as ledgers,
        cluster.connect() as others,
    ):
        ledger_id = await ledgers.reserve(password=b"secret", custom={"a": b"b"})
        assert await payloads_of(ledgers, ledger_id) == []
        claims = [each.claim(ledger_id, b"secret") for each in (ledgers, others) * 4]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        (writer,) = (each for each in outcomes if isinstance(each, LedgerWriter))
        assert [type(each) for each in outcomes].count(LedgerFenced) == 7
        async with writer:
            await writer.append_many(letters(10))
        assert await payloads_of(others, ledger_id, b"secret") == letters(10)
        assert dict(writer.metadata.custom)["a"] == b"b"
        with pytest.raises(LedgerClosed):
            await others.claim(ledger_id)


async def test_claim_of_a_written_or_recovered_ledger_fails(cluster: LocalCluster) -> None:
    """LG2."""
    async with asyncio.timeout(PATIENCE_S), cluster.connect() as ledgers:
        writer = await ledgers.create()
        with pytest.raises(LedgerFenced):
            await ledgers.claim(writer.ledger_id)
        reserved = await ledgers.reserve()
        with pytest.raises(Unauthorized):
            await ledgers.claim(reserved, b"wrong")
        async with await ledgers.open_recover(reserved) as reader:
            assert reader.metadata.last_entry == -1
        with pytest.raises(LedgerClosed):
            await ledgers.claim(reserved)


# --- Every copy ---------------------------------------------------------------------------------


def flaws_of(verdict: LedgerVerification) -> list[tuple[str, str, int, int, int]]:
    return [
        (flaw.bookie, flaw.state.value, flaw.first_entry, flaw.last_entry, flaw.count)
        for flaw in verdict.flaws
    ]


async def write_copies(
    ledgers: Ledgers, ledger_id: int, bookie: str, entries: dict[int, bytes]
) -> None:
    """Write copies with any payload, as recovery writes entries back."""
    metadata = (await ledgers.metadata(ledger_id)).metadata
    assert metadata.digest_type is not None
    assert metadata.password is not None
    digest = LedgerDigest(metadata.digest_type, metadata.password, metadata.ledger_id)
    key = ledger_key(metadata.password)
    packer = V3AddPacker(key, digest, ledgers.bookies.txn_ids, is_recovery=True)
    sink = Listening()
    channel = ledgers.bookies.add_channel(BookieId(bookie), metadata.ledger_id, sink)
    while not channel.is_open:
        await asyncio.sleep(0.01)
    frames = [packer.pack(EntryId(e), NO_ENTRY, 0, p) for e, p in entries.items()]
    channel.write(frames, len(frames))
    while channel.unanswered:
        await asyncio.sleep(0.01)
    assert [replies.error for replies in sink.replies] == [None] * len(sink.replies)
    channel.close()


@VERSIONS
@pytest.mark.parametrize("ensemble", [2, 3], ids=["whole", "striped"])
async def test_verify_checks_every_copy(cluster: LocalCluster, version: int, ensemble: int) -> None:
    async with asyncio.timeout(PATIENCE_S), cluster.connect(client(version)) as ledgers:
        async with await ledgers.create(ensemble=ensemble, write=2, ack=2) as writer:
            await writer.append_many(letters(3000))
        done: list[int] = []
        verdict = await ledgers.verify(writer.ledger_id, on_progress=done.append)
        assert verdict.is_sound
        assert (verdict.entries, sum(done)) == (3000, 3000)
        assert verdict.copies == {CopyState.GOOD: 6000}

        gone = writer.metadata.fragments[0].ensemble[1]
        await cluster.stop(gone)
        verdict = await ledgers.verify(writer.ledger_id)
        (flaw,) = verdict.flaws
        held = 6000 // ensemble
        assert (flaw.bookie, flaw.state, flaw.count) == (gone, CopyState.UNREACHABLE, held)
        assert (verdict.under_replicated, verdict.lost, verdict.in_doubt) == (held, 0, 0)


async def test_verify_reports_missing_bad_and_different_copies(tmp_path: Path) -> None:
    names = [f"bk-{number}" for number in range(1, 5)]
    async with LocalCluster(tmp_path, names) as cluster, cluster.connect() as ledgers:
        async with asyncio.timeout(PATIENCE_S):
            async with await ledgers.create() as writer:
                await writer.append_many(letters(100))
            first, second, _ = writer.metadata.fragments[0].ensemble
            (spare,) = {*names} - {*writer.metadata.fragments[0].ensemble}
            # Replace a complete bookie by one with missing and different copies.
            copies = {e: b"%010d" % e for e in range(100) if not 20 <= e < 30}
            copies[50] = b"9999999999"
            await write_copies(ledgers, writer.ledger_id, spare, copies)
            stored = await ledgers.metadata(writer.ledger_id)
            moved = stored.metadata.with_replacement(EntryId(0), first, BookieId(spare))
            await ledgers.nodes.update(stored, moved)
            verdict = await ledgers.verify(writer.ledger_id)
            assert flaws_of(verdict) == [
                (spare, "missing", 20, 29, 10),
                (spare, "different", 50, 50, 1),
            ]
            assert (verdict.under_replicated, verdict.below_ack, verdict.lost) == (11, 0, 0)

            # With another digest type every digest is wrong.
            stored = await ledgers.metadata(writer.ledger_id)
            await ledgers.nodes.update(stored, replace(stored.metadata, digest_type=HMAC))
            verdict = await ledgers.verify(writer.ledger_id)
            assert {flaw.state for flaw in verdict.flaws} == {CopyState.BAD, CopyState.MISSING}
            assert (verdict.lost, verdict.below_ack) == (100, 100)
            assert second in {flaw.bookie for flaw in verdict.flaws}


# --- Behind TLS ---------------------------------------------------------------------------------


def golden(name: str) -> str:
    return str(Path(__file__).parents[2] / "golden" / "tls" / f"{name}.pem")


async def test_tls_create_without_tls_bookies_is_refused(tmp_path: Path) -> None:
    ours = client_context(golden("authority-a"), certificate=golden("client-a"))
    async with LocalCluster(tmp_path) as cluster, connect(cluster.url, tls=ours) as ledgers:
        with raises_message(NotEnoughBookies):
            await ledgers.create()
        assert [each async for each in ledgers.list()] == []


async def test_mutual_tls_admits_only_trusted_clients(tmp_path: Path) -> None:
    files = TlsFiles(golden("server-a"), authorities=golden("authority-a"))
    ours = client_context(golden("authority-a"), certificate=golden("client-a"))
    stranger = client_context(golden("authority-a"), certificate=golden("client-b"))
    doubting = client_context(golden("authority-b"), certificate=golden("client-a"))
    quick = ClientConfig(add_deadline_s=0.5, read_deadline_s=0.5)
    async with LocalCluster(tmp_path, tls=files) as cluster, asyncio.timeout(PATIENCE_S):
        async with connect(cluster.url, tls=ours) as ledgers:
            async with await ledgers.create() as writer:
                await writer.append_many(letters(1000, 2000))
            assert await payloads_of(ledgers, writer.ledger_id) == letters(1000, 2000)
            while not (await ledgers.verify(writer.ledger_id)).is_sound:
                await asyncio.sleep(0.1)  # `append_many` does not wait for third copies.
        for context in (stranger, doubting):
            async with connect(cluster.url, quick, tls=context) as ledgers:
                with pytest.raises(EntryUnavailable):
                    await payloads_of(ledgers, writer.ledger_id)

"""The simulated Disk port: its contract and its faults."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.proto.errors import DirectoryInUse
from rollbook.proto.ports import Buffer, Disk, OpenMode
from rollbook.proto.runtime.system_disk import SystemDisk
from tests.crash.images.step_disk import StepDisk, step
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.disk import SimulatedDisk
from tests.simulation.kernel.filesystem import SECTOR, FileSystem, Operation

Story = Callable[[Disk, str], Awaitable[None]]


def run_real(story: Story, folder: Path) -> None:
    disk = SystemDisk()
    try:
        asyncio.run(_call(story, disk, str(folder)))
    finally:
        disk.close()


async def _call(story: Story, disk: Disk, folder: str) -> None:
    await story(disk, folder)


def run_simulated(story: Story, folder: Path) -> None:
    for seed in range(6):  # With some seeds, every call yields to other tasks.

        async def main(node: Node) -> None:
            await node.disk.make_directory("/data")
            await story(node.disk, "/data")

        async def scenario(world: World) -> None:
            await world.node("a").start(main).result

        world = World(seed)
        world.run(scenario(world))


def run_stepped(story: Story, _: Path) -> None:
    disk = StepDisk(FileSystem())
    step(disk.make_directory("/data"))
    step(_call(story, disk, "/data"))


@pytest.mark.parametrize("run", [run_real, run_simulated, run_stepped])
def test_buffer_of_a_read_is_valid_only_during_the_call(run: Any, tmp_path: Path) -> None:
    async def story(disk: Disk, folder: str) -> None:
        file = await disk.open(f"{folder}/f", OpenMode.CREATE)
        await file.write_at(0, [b"0123456789"])
        assert await file.read_with(2, 3, bytes) == b"234"
        assert await file.read_with(8, 9, lambda lent: bytes(lent[:-1])) == b"8"
        assert await file.read_with(10, 1, len) == 0
        with pytest.raises(ZeroDivisionError):
            await file.read_with(0, 10, lambda _: 1 // 0)
        kept: list[Buffer] = []
        await file.read_with(0, 10, kept.append)
        # The real disk may or may not lend its buffer, and what replaces the bytes is random.
        if run is not run_real:
            assert bytes(kept[0]) == bytes(10)
        assert await file.read_at(0, 10) == b"0123456789"
        await file.close()

    run(story, tmp_path)


@pytest.mark.parametrize("run", [run_real, run_simulated])
class TestContract:
    """The same stories on real files and on simulated ones."""

    def test_reading_and_writing(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            path = f"{folder}/f"
            with pytest.raises(FileNotFoundError):
                await disk.open(path, OpenMode.WRITE)
            file = await disk.open(path, OpenMode.CREATE)
            with pytest.raises(FileExistsError):
                await disk.open(path, OpenMode.CREATE)
            with pytest.raises(IsADirectoryError):
                await disk.open(folder, OpenMode.WRITE)
            await file.write_at(0, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
            await file.write_and_sync(8, [b"xy"])
            assert await file.size() == 10
            assert await file.read_at(4, 100) == b"ef\0\0xy"
            assert await file.read_at(100, 5) == b""
            await file.truncate(5)
            await file.allocate(4, 4)
            assert await file.read_at(0, 100) == b"abcde\0\0\0"
            await file.allocate(0, 2)
            assert await file.size() == 8
            await file.sync()
            reader = await disk.open(path, OpenMode.READ)
            with pytest.raises(OSError, match="Bad file descriptor"):
                await reader.write_at(0, [b"no"])
            assert await reader.read_at(0, 3) == b"abc"
            await file.close()
            await file.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                await file.read_at(0, 1)
            await reader.close()

        run(story, tmp_path)

    def test_directory_operations(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            await disk.make_directory(f"{folder}/a/b")
            await disk.make_directory(f"{folder}/a/b")
            for name in "zxy":
                await (await disk.open(f"{folder}/a/{name}", OpenMode.CREATE)).close()
            assert await disk.list_directory(f"{folder}/a") == ["b", "x", "y", "z"]
            assert await disk.stat(f"{folder}/a/none") is None
            about = await disk.stat(f"{folder}/a")
            assert about is not None
            assert about.is_directory
            await disk.rename(f"{folder}/a/x", f"{folder}/a/b/x")
            await disk.link(f"{folder}/a/b/x", f"{folder}/a/again")
            await disk.unlink(f"{folder}/a/b/x")
            await disk.rename(f"{folder}/a/y", f"{folder}/a/z")
            assert await disk.list_directory(f"{folder}/a") == ["again", "b", "z"]
            assert await disk.list_directory(f"{folder}/a/b") == []
            await disk.sync_directory(f"{folder}/a")
            with pytest.raises(FileNotFoundError):
                await disk.unlink(f"{folder}/a/x")
            with pytest.raises(FileNotFoundError):
                await disk.list_directory(f"{folder}/none")
            assert (await disk.space(folder)).free_bytes > 0

        run(story, tmp_path)

    def test_open_file_outlives_its_name(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            file = await disk.open(f"{folder}/f", OpenMode.CREATE)
            await file.write_at(0, [b"still here"])
            await disk.unlink(f"{folder}/f")
            assert await file.read_at(0, 5) == b"still"
            await file.sync()
            await file.close()

        run(story, tmp_path)

    def test_calls_take_effect_in_order(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            file = await disk.open(f"{folder}/f", OpenMode.CREATE)
            await asyncio.gather(
                file.write_and_sync(0, [b"1" * 2000]),
                file.write_at(0, [b"2" * 1500]),
                file.write_and_sync(0, [b"3" * 1000]),
                file.truncate(1800),
                file.write_at(0, [b"4" * 500]),
                file.sync(),
            )
            assert await file.read_at(0, 5000) == b"4" * 500 + b"3" * 500 + b"2" * 500 + b"1" * 300
            await file.close()

        run(story, tmp_path)

    def test_cancelled_sync_keeps_its_place_in_the_order(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            file = await disk.open(f"{folder}/f", OpenMode.CREATE)
            for _ in range(5):
                task = asyncio.get_running_loop().create_task(file.write_and_sync(0, [b"first"]))
                await asyncio.sleep(0)
                task.cancel()
                await file.write_at(0, [b"later"])
                assert task.done()
                assert await file.read_at(0, 5) == b"later"
            await file.close()

        run(story, tmp_path)

    def test_quick_writes_are_made_within_the_call(
        self, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Large writes, and writes that would wait for another change, are not quick."""
        monkeypatch.setattr("rollbook.proto.runtime.system_disk._ON_THE_SPOT_S", 1000.0)

        async def story(disk: Disk, folder: str) -> None:
            if isinstance(disk, SimulatedDisk):
                disk.quick_odds = 1.0
            file: Any = await disk.open(f"{folder}/f", OpenMode.CREATE)
            other = await disk.open(f"{folder}/g", OpenMode.CREATE)
            assert file.is_quick(64 * 1024)
            assert not file.is_quick(64 * 1024 + 1)
            file.write_and_sync_now(0, [b"ab", bytearray(b"cd"), memoryview(b"ef")])
            file.write_and_sync_now(8, [b"xy"])
            assert await file.read_at(0, 100) == b"abcdef\0\0xy"
            async with file._turn:  # Simulates another change of the file in progress.
                assert not file.is_quick(1)
                assert other.is_quick(1)
            syncing = asyncio.get_running_loop().create_task(file.sync())
            await asyncio.sleep(0)
            assert not file.is_quick(1)
            assert not other.is_quick(1)
            await syncing
            assert file.is_quick(1)
            assert other.is_quick(1)
            await file.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                file.write_and_sync_now(0, [b"no"])
            await other.close()

        run(story, tmp_path)

    def test_lock_excludes_a_second_holder_until_released(self, run: Any, tmp_path: Path) -> None:
        async def story(disk: Disk, folder: str) -> None:
            lock = await disk.lock(f"{folder}/lock")
            with pytest.raises(DirectoryInUse, match="another process holds"):
                await disk.lock(f"{folder}/lock")
            await lock.release()
            await lock.release()
            again = await disk.lock(f"{folder}/lock")
            await again.release()

        run(story, tmp_path)


# --- Faults ---------------------------------------------------------------------------------------


def on_node(story: Callable[[Node, SimulatedDisk], Awaitable[Any]], seed: int = 1) -> World:
    world = World(seed)

    async def scenario() -> None:
        node = world.node("a")
        await story(node, node.disk)

    world.run(scenario())
    return world


async def _file(disk: SimulatedDisk, data: bytes = b"") -> Any:
    file = await disk.open("/f", OpenMode.CREATE)
    await file.write_and_sync(0, [data])
    await disk.sync_directory("/")
    return file


def test_failed_sync_raises_once_and_loses_bytes() -> None:
    lost = 0
    for seed in range(20):

        async def story(node: Node, disk: SimulatedDisk) -> None:
            nonlocal lost
            file = await _file(disk, b"-" * 4 * SECTOR)
            await file.write_at(0, [b"a" * 4 * SECTOR])
            disk.fail_next_sync()
            with pytest.raises(OSError, match="Input/output error"):
                await file.sync()
            await file.sync()  # The pages are clean, so nothing is left that could fail.
            durable = disk.durable("/f")
            assert durable is not None
            assert set(durable) <= set(b"-a")
            assert b"-" in durable
            disk.drop_caches()
            assert disk.contents("/f") == durable
            lost += durable.count(b"-")

        on_node(story, seed)
    assert lost > 20 * SECTOR


def test_failed_write_may_have_written_a_part() -> None:
    lengths = set()
    for seed in range(20):

        async def story(node: Node, disk: SimulatedDisk) -> None:
            file = await _file(disk)
            disk.fail_next_write()
            with pytest.raises(OSError, match="Input/output error"):
                await file.write_at(0, [b"a" * 1000])
            lengths.add(await file.size())
            await file.write_at(0, [b"a" * 1000])

        on_node(story, seed)
    assert len(lengths) > 10


def test_full_disk_accepts_what_fits() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.turn_odds = 0.0
        file = await _file(disk, b"-" * 600)
        disk.capacity_bytes = 1000
        assert (await disk.space("/")).free_bytes == 400
        with pytest.raises(OSError, match="No space left"):
            await file.write_at(500, [b"a" * 1000])
        assert await file.size() == 1000
        await file.write_at(0, [b"b" * 1000])  # Overwriting needs no space.
        with pytest.raises(OSError, match="No space left"):
            await file.allocate(0, 1001)
        other = await disk.open("/g", OpenMode.CREATE)  # New names need no space.
        with pytest.raises(OSError, match="No space left"):
            await other.write_at(0, [b"x"])
        await disk.unlink("/f")
        assert (await disk.space("/")).free_bytes == 0, "the file is still open"
        await disk.sync_directory("/")
        await file.close()
        assert (await disk.space("/")).free_bytes == 1000

    on_node(story)


def test_killed_process_loses_its_locks_but_not_the_page_cache() -> None:
    async def main(node: Node) -> None:
        await node.disk.lock("/lock")
        file = await node.disk.open("/f", OpenMode.CREATE)
        await file.write_at(0, [b"not synced"])
        await asyncio.get_running_loop().create_future()

    async def again(node: Node) -> None:
        await node.disk.lock("/lock")
        assert node.disk.contents("/f") == b"not synced"

    async def story(node: Node, disk: SimulatedDisk) -> None:
        node.start(main)
        await asyncio.sleep(1)
        with pytest.raises(DirectoryInUse):
            await disk.lock("/lock")
        node.kill()
        await node.start(again).result

    on_node(story)


def test_unnamed_files_are_freed_when_their_process_dies() -> None:
    async def main(node: Node) -> None:
        file = await node.disk.open("/f", OpenMode.CREATE)
        await file.write_at(0, [b"x" * 1000])
        await node.disk.unlink("/f")
        await node.disk.sync_directory("/")
        await asyncio.get_running_loop().create_future()

    async def story(node: Node, disk: SimulatedDisk) -> None:
        node.start(main)
        await asyncio.sleep(1)
        assert disk.system.used_bytes == 1000
        node.kill()
        assert disk.system.used_bytes == 0

    on_node(story)


@pytest.mark.parametrize("seed", range(30))
def test_acknowledged_writes_survive_power_cuts_at_any_moment(seed: int) -> None:
    acknowledged = 0

    async def main(node: Node) -> None:
        nonlocal acknowledged
        if await node.disk.stat("/f") is None:
            await node.disk.open("/f", OpenMode.CREATE)
            await node.disk.sync_directory("/")
        file = await node.disk.open("/f", OpenMode.WRITE)
        for record in range(acknowledged, 1000):
            await file.write_and_sync(record * 100, [record.to_bytes(100)])
            acknowledged = record + 1

    async def story(node: Node, disk: SimulatedDisk) -> None:
        for _ in range(5):
            node.start(main)
            await asyncio.sleep(node.world.random("test").uniform(0, 0.05))
            node.power_cut()
            data = disk.contents("/f") or b""
            for record in range(acknowledged):
                assert data[record * 100 : record * 100 + 100] == record.to_bytes(100)
        assert acknowledged > 0

    on_node(story, seed)


def test_power_cuts_lose_all_some_or_nothing() -> None:
    outcomes = set()
    for seed in range(60):

        async def story(node: Node, disk: SimulatedDisk) -> None:
            file = await _file(disk, b"-" * 8 * SECTOR)
            await file.write_at(0, [b"a" * 8 * SECTOR])
            node.power_cut()
            data = disk.contents("/f")
            assert data is not None
            outcomes.add(data[::SECTOR])

        on_node(story, seed)
    assert {b"-" * 8, b"a" * 8} <= outcomes
    assert len(outcomes) > 20


def test_hung_disk_completes_no_sync_until_healed() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        file = await _file(disk)
        disk.hang()
        task = asyncio.get_running_loop().create_task(file.sync())
        await asyncio.sleep(30)
        assert not task.done()
        disk.unhang()
        await task
        disk.sync_s = (1.0, 2.0)
        before = node.world.now
        await file.sync()
        assert 1.0 <= node.world.now - before <= 2.0

    on_node(story)


def test_sync_does_not_cover_later_writes_of_another_handle() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.turn_odds = 0.0
        first = await _file(disk, b"-" * 2 * SECTOR)
        second = await disk.open("/f", OpenMode.WRITE)
        await first.write_at(0, [b"a" * SECTOR])
        sync = asyncio.get_running_loop().create_task(first.sync())
        await asyncio.sleep(0)
        await second.write_at(SECTOR, [b"b" * SECTOR])
        await sync
        assert disk.durable("/f") == b"a" * SECTOR + b"-" * SECTOR

    on_node(story)


def test_write_and_sync_now_survives_power_cut() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.quick_odds = 1.0
        file = await _file(disk, b"-" * SECTOR)
        file.write_and_sync_now(0, [b"a" * SECTOR])
        assert disk.durable("/f") == b"a" * SECTOR

    on_node(story)


@pytest.mark.parametrize("is_power_lost", [True, False])
def test_pending_sync_of_dead_process_does_not_block_quick_writes(is_power_lost: bool) -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.quick_odds = 1.0
        is_begun = asyncio.Event()

        async def sync_for_ever(_: Node) -> None:
            file = await disk.open("/f", OpenMode.CREATE)
            disk.hang()
            is_begun.set()
            await file.sync()

        node.start(sync_for_ever)
        await is_begun.wait()
        await asyncio.sleep(1.0)
        if is_power_lost:
            node.power_cut()
        else:
            node.kill()
        disk.unhang()
        file = await disk.open("/g", OpenMode.CREATE)
        assert file.is_quick(1)

    on_node(story)


def test_cancelled_sync_ends_when_the_device_is_done() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.turn_odds = 0.0
        file = await _file(disk, b"-" * SECTOR)
        await file.write_at(0, [b"a" * SECTOR])
        disk.sync_s = (1.0, 1.0)
        began = node.world.now
        task = asyncio.get_running_loop().create_task(file.sync())
        for _ in range(3):
            await asyncio.sleep(0.1)
            task.cancel()
        await file.write_at(0, [b"b" * SECTOR])
        assert node.world.now == began + 1.0
        assert task.cancelled()
        assert disk.durable("/f") == b"a" * SECTOR

    on_node(story)


def test_rot_and_stale_sectors_change_durable_bytes() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.turn_odds = 0.0
        file = await _file(disk, b"-" * 2 * SECTOR)
        assert disk.make_stale("/f") == 0
        assert disk.contents("/f") == b"\0" * SECTOR + b"-" * SECTOR, (
            "zeros, as before the first write"
        )
        await file.write_and_sync(SECTOR, [b"a" * SECTOR])
        assert disk.make_stale("/f") == SECTOR
        assert (disk.durable("/f") or b"")[SECTOR:] == b"-" * SECTOR
        before = disk.durable("/f")
        where = disk.rot("/f")
        after = disk.durable("/f")
        assert before is not None
        assert after is not None
        assert [i for i in range(2 * SECTOR) if before[i] != after[i]] == [where]
        assert await file.read_at(where, 1) == after[where : where + 1]

    on_node(story)


def test_wiped_disk_is_empty_and_its_open_files_fail() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        file = await _file(disk, b"data")
        disk.wipe()
        assert await disk.list_directory("/") == []
        with pytest.raises(OSError, match="Bad file descriptor"):
            await file.read_at(0, 4)

    on_node(story)


def test_disks_of_one_machine_fail_independently() -> None:
    async def story(node: Node, disk: SimulatedDisk) -> None:
        second = node.disk.mount("/data/2")
        port: Disk = node.disk
        for path in ("/data/1", "/data/2/deep"):
            await port.make_directory(path)
        for path in ("/data/1/f", "/data/2/deep/f"):
            await (await port.open(path, OpenMode.CREATE)).write_and_sync(0, [b"x" * 100])
        assert await port.list_directory("/data") == ["1", "2"]
        assert await port.list_directory("/data/2") == ["deep"]
        devices = [await port.stat(path) for path in ("/data/1/f", "/data/2/deep/f", "/data/2")]
        assert [about and about.device for about in devices] == [1, 2, 2]
        for act in (port.rename, port.link):
            with pytest.raises(OSError, match="cross-device"):
                await act("/data/1/f", "/data/2/f")
        await port.rename("/data/2/deep/f", "/data/2/f")
        second.capacity_bytes = 100
        assert (await port.space("/data/2/deep")).free_bytes == 0
        assert (await port.space("/data")).free_bytes > 0
        second.fail_next_sync()
        await port.sync_directory("/data")
        with pytest.raises(OSError, match="Input/output error"):
            await port.sync_directory("/data/2")
        node.power_cut()
        assert disk.system is not second.system
        assert await port.list_directory("/data") in (["1", "2"], ["2"]), "a mount point survives"
        second.record = []
        second.wipe()
        assert await port.list_directory("/data/2") == []
        await port.make_directory("/data/2/deep")
        assert FileSystem.replay(second.record).same_as(second.system)

    for seed in range(5):
        on_node(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_record_of_a_run_rebuilds_its_disk(seed: int) -> None:
    async def main(node: Node) -> None:
        disk, chance = node.disk, node.randomness
        await disk.make_directory("/d")
        for number in range(100):
            path = f"/d/{chance.randrange(6)}"
            try:
                mode = chance.choice((OpenMode.CREATE, OpenMode.WRITE))
                file = await disk.open(path, mode)
                await file.write_at(chance.randrange(2000), [bytes([number]) * 300])
                if chance.random() < 0.5:
                    await file.sync()
                if chance.random() < 0.3:
                    await disk.rename(path, f"/d/{chance.randrange(6)}")
                if chance.random() < 0.3:
                    await disk.sync_directory(chance.choice(("/", "/d")))
                await file.close()
            except OSError:
                pass

    async def story(node: Node, disk: SimulatedDisk) -> None:
        disk.record = record
        for _ in range(3):
            node.start(main)
            await asyncio.sleep(0.02)
            node.power_cut()
            assert FileSystem.replay(record).same_as(disk.system)

    record: list[Operation] = []
    on_node(story, seed)
    assert len(record) > 50

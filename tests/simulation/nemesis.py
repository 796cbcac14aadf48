"""Carries a schedule of faults out on a world, and takes all of them back in the end."""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any, Final

from tests.simulation.history import History
from tests.simulation.kernel.disk import SimulatedDisk
from tests.simulation.kernel.network import Link
from tests.simulation.kernel.world import Node, World
from tests.simulation.schedule import Fault, Kind

Undo = Callable[[], object]
_TAIL_ODDS: Final = 0.2


class Nemesis:
    def __init__(
        self, world: World, history: History, tell: Callable[[str], None] | None = None
    ) -> None:
        self._world, self._history, self._tell = world, history, tell
        # How to end each, in order of beginning.
        self._in_force: dict[int, Callable[[], None]] = {}
        self._chance = world.random("nemesis")
        self._begun = 0
        self._is_over = False
        self._healthy: dict[tuple[int, str], tuple[object, Any]] = {}  # By address; never iterated.

    def schedule(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._world.at(fault.at_us / 1e6, self._begin, fault)

    def heal(self) -> None:
        """Takes back whatever is in force; nothing of the schedule happens from now on."""
        self._is_over = True
        for end in list(self._in_force.values()):
            end()

    def _begin(self, fault: Fault) -> None:
        if self._is_over:
            return
        self._world.log("fault", kind=fault.kind.value, nodes=fault.nodes)
        if self._tell:
            self._tell(f"FAULT: {fault}")
        disturbance = self._history.disturb(fault.kind.value, " ".join(fault.nodes))
        undo = self._inflict(fault)
        if undo is None:
            self._history.on_healed(disturbance)
            return
        self._begun += 1
        number = self._begun

        def end() -> None:
            if self._in_force.pop(number, None) is not None:
                self._world.log("fault_over", kind=fault.kind.value, nodes=fault.nodes)
                undo()
                if self._tell and fault.for_us:
                    self._tell(f"over: {fault}")
                self._history.on_healed(disturbance)

        self._in_force[number] = end
        if fault.for_us:
            self._world.at(self._world.now + fault.for_us / 1e6, end)

    def _inflict(self, fault: Fault) -> Undo | None:
        """Returns how to take it back; None for what cannot be or is over at once."""
        world, network, metadata = self._world, self._world.network, self._world.metadata
        nodes = [world.node(name) for name in fault.nodes if name in world.nodes]
        seconds = fault.amount / 1e6
        match fault.kind, fault.nodes:
            case Kind.KILL, _:
                return _stop(nodes, Node.kill, returns=fault.for_us > 0)
            case Kind.POWER_CUT, _:
                return _stop(nodes, Node.power_cut, returns=True)
            case Kind.PAUSE, _:
                return _pause(nodes[0])
            case Kind.CUT, (a, b):
                network.cut(a, b)
                return lambda: network.heal(a, b)
            case Kind.CUT_ONE_WAY, (a, b):
                network.cut_one_way(a, b)
                return lambda: network.heal(a, b)
            case Kind.RESET, (a, b):
                network.reset(a, b)
            case Kind.STALL, (a, b):
                network.stall(a, b)
                return lambda: network.unstall(a, b)
            case Kind.SLOW_LINK, (a, b):
                return self._slow([network.link(a, b)], seconds)
            case Kind.FAR_APART, names:
                return self._slow([network.link(a, b) for a, b in permutations(names, 2)], seconds)
            case Kind.TAIL_LATENCY, (a, b):
                return self._set([network.link(a, b)], tail_odds=_TAIL_ODDS, tail_s=(0.0, seconds))
            case Kind.JITTER, names:
                links = [network.link(a, b) for a, b in permutations(names, 2)]
                return self._set(links, tail_odds=_TAIL_ODDS, tail_s=(0.0, seconds))
            case Kind.SLOW_DISK, _:
                return self._set([nodes[0].disk], sync_s=(seconds / 2, seconds))
            case Kind.HUNG_DISK, _:
                nodes[0].disk.hang()
                return nodes[0].disk.unhang
            case Kind.SYNC_ERROR, _:
                return self._set([node.disk for node in nodes], sync_error_odds=1.0)
            case Kind.WRITE_ERROR, _:
                return self._set([node.disk for node in nodes], write_error_odds=1.0)
            case Kind.READ_ERROR, _:
                return self._set([node.disk for node in nodes], read_error_odds=1.0)
            case Kind.DISK_FULL, _:
                return self._set([nodes[0].disk], capacity_bytes=0)
            case Kind.ROT, _:
                for _ in range(fault.amount):
                    self._in_some_file(nodes[0], SimulatedDisk.rot)
            case Kind.STALE_SECTOR, _:
                self._in_some_file(nodes[0], SimulatedDisk.make_stale)
            case Kind.CLOCK_JUMP, _:
                nodes[0].clock.jump(seconds)
            case Kind.METADATA_DOWN, _:
                metadata.down()
                return metadata.up
            case Kind.METADATA_LOSS, _:
                metadata.lose(nodes[0], replies=bool(fault.amount))
            case Kind.METADATA_EXPIRY, _:
                metadata.expire(nodes[0])
            case Kind.METADATA_LAG, _:
                return self._set([metadata], lag_s=(0.0, seconds))
            case Kind.PARTIAL_LISTING, _:
                return self._set([metadata], partial_listing_odds=fault.amount / 100)
            case Kind.ROLLBACK, _:
                return _roll_back(nodes[0])
            case _:
                raise ValueError(f"no way to inflict {fault}")
        return None

    def _slow(self, links: Sequence[Link], seconds: float) -> Undo:
        least, most = self._healthy_value(links[0], "delay_s")  # The same on all healthy links.
        return self._set(links, delay_s=(least + seconds, most + seconds))

    def _in_some_file(self, node: Node, damage: Callable[[SimulatedDisk, str], int]) -> None:
        """The first that has what can be damaged, in random order."""
        paths = list(_files(node.disk, "/"))
        self._chance.shuffle(paths)
        for path in paths:
            if damage(node.disk, path) >= 0:
                return

    def _set(self, subjects: Sequence[object], **values: object) -> Undo:
        """Faults may overlap: each one's end brings back what was there before all of them."""
        before = [
            (subject, name, self._healthy_value(subject, name))
            for subject in subjects
            for name in values
        ]
        for subject, name, _ in before:
            setattr(subject, name, values[name])

        def restore() -> None:
            for subject, name, healthy in before:
                setattr(subject, name, healthy)

        return restore

    def _healthy_value(self, subject: object, name: str) -> Any:
        key = (id(subject), name)
        return self._healthy.setdefault(key, (subject, getattr(subject, name)))[1]


def _files(disk: SimulatedDisk, folder: str) -> Iterator[str]:
    for name in disk.system.list_directory(folder):
        path = f"{folder.rstrip('/')}/{name}"
        if disk.system.find(path) in disk.system.files:
            yield path
        else:
            yield from _files(disk, path)


def _stop(nodes: Sequence[Node], how: Callable[[Node], object], *, returns: bool) -> Undo | None:
    """Together, so that a power cut of several leaves none of them a moment to say so."""
    for node in nodes:
        how(node)

    def start() -> None:
        for node in nodes:
            # Another fault's end may have started it already.
            if node.process is not None and not node.is_running:
                node.restart()

    return start if returns else None


def _roll_back(node: Node) -> Undo | None:
    """As when a disk is replaced by its snapshot, and the process starts in between."""
    if not node.is_running:
        return None
    snapshot = node.disk.image()
    node.kill()
    node.restart()

    def replace() -> None:
        node.kill()
        node.disk.put_back(snapshot)
        if node.is_up:
            node.restart()

    return replace


def _pause(node: Node) -> Undo | None:
    if not node.is_running:
        return None
    node.pause()
    return node.resume

"""The kernel of the simulator: one thread, one seed, invented machines.

A `World` is everything that a run depends on. It is made from a seed and runs one coroutine, the
scenario, on virtual time; whatever happens in it is a function of the seed alone, and its trace
proves that. Product code runs in it unchanged, because it sees the machine only through ports.

    world = World(seed)
    b1, client = world.node("b1"), world.node("client")

    async def scenario() -> None:
        b1.start(serve)                      # serve(node) is a process: a coroutine function
        writer = client.start(write)
        world.at(2.5, b1.power_cut)          # any action, at any virtual second
        world.at(4.0, b1.restart)
        await writer.result                  # what its main returned; its exception is raised here

    world.run(scenario())                    # or raises a SimulationFailed
    world.trace.digest()                     # equal iff the runs were

asyncio's sleep, time-outs, queues, locks and streams work as they are. About 0.4 M callbacks a second
(`python -m tests bench simulator`).

World
    World(seed, *, shuffle=False, keep_text=False, callbacks_max=5_000_000, seconds_max=21_600)
    .run(coroutine) -> its result            one run per world; the scenario ends it
    .now: float                              virtual seconds since the start
    .at(when_s, action, *arguments)          run a function then, outside every node
    .random(purpose) -> random.Random        an own stream for each purpose, drawn from the seed
    .log(event, **fields)                    into the trace, with the time and the running node
    .fail(reason)                            ends the run with InvariantBroken
    .node(name) -> Node                      made at first mention; its name is its host name
    .nodes: dict[str, Node], .network, .metadata, .buggify, .trace, .callbacks

Node: one machine, with one disk and one process at a time
    .start(main) -> Process                  boots it; main(node) is a coroutine function
    .restart() -> Process                    kill, then start the same main as a new process
    .kill()                                  SIGKILL: no `finally` runs, sockets close, page cache stays
    .power_cut()                             peers hear nothing, un-synced bytes may be lost
    .pause(), .resume()                      SIGSTOP, SIGCONT: the kernel of the machine goes on
    .terminate()                             cancels main, as Ctrl-C does
    .is_running, .is_up, .process
    .clock, .transport, .disk, .randomness, .buggify     the ports
    await .metadata(session_timeout_s=10.0) -> MetadataStore
    .clock.jump(seconds)                     the wall clock only
    Process: .result (a future; cancelled if the process was killed), .is_alive, .number

    A process ends when main returns, raises, or anything in it raises SystemExit. The result future
    holds main's exception (of a SystemExit: its code); if nobody awaits it the run fails. So does
    any exception that reaches the loop, a coroutine that is never awaited, and a forbidden call (see
    guards.py). What product code logs through structlog goes into the trace.

Network: `world.network`; hosts are node names
    .link(source, target) -> Link            one direction
        .delay_s = (least, most)             .tail_odds, .tail_s = (least, most)
        .bytes_per_s = None                  a slow link
        .is_cut, .is_stalled                 set through the methods below
    .cut(a, b), .cut_one_way(source, target), .heal(a, b), .isolate(host), .rejoin(host), .heal_all()
        Bytes sent into a cut are retransmitted after it heals, as TCP does.
    .stall(source, target), .unstall(source, target)     a reader that does not read: zero window
    .slow(a, b, delay_s, tail_odds=0.0, tail_s=(0, 0))   both directions
    .refuse(host), .accept(host)             new connections are reset
    .reset(a, b) -> int                      every connection between them dies, bytes in flight with it
    await .swizzle(hosts, pause_s)           clogs a random subset one by one, unclogs in another order
    Connections to a dead process are refused or reset; to a dead machine they hang until it is up.

Disk: `node.disk`, the Disk port; state survives processes
    .sync_s = (least, most), .tail_odds, .tail_s, .hang(), .unhang()     latency of syncs
    .turn_odds, .turn_s = (least, most)      how often others run during any other call, and how long
    .sync_error_odds, .write_error_odds, .read_error_odds, .fail_next_sync(), .fail_next_write()
        EIO. After a failed sync the pages are clean and the bytes are not safe.
    .capacity_bytes = None                   ENOSPC beyond it
    .rot(path, position=None) -> int         flips one durable bit; where
    .make_stale(path) -> int                 a sector falls back to what it was before the last sync
    .drop_caches()                           what a failed sync lost is gone for readers, too
    .wipe()                                  an empty disk in its place
    .heal()                                  as new, but for what is on it
    .contents(path), .durable(path)          bytes or None: as cached, and as the last sync left them
    .mount(path) -> a disk                   for that directory: another device, with faults of its own
    .record = None                           a list here receives every operation (see filesystem.py)
    .on_synced = None                        called with a file's durable bytes after each sync, and
                                             from where to where they are new

Metadata: `world.metadata`, a ZooKeeper of the network's host "metadata"
    .down(), .up()                           the whole store
    .expire(node)                            ends its session now
    .lag_s = None                            (least, most): reads may be that stale until sync(),
                                             which asks for nothing while they are not
    .partial_listing_odds                    children() forgets some names
    .lose(node, replies=True)                its next request breaks the connection; the reply is lost,
                                             or the request itself
    .heal()                                  up, current and whole
    .tree                                    the state, for checkers
    .on_asked, .on_commit = None             called with each question and who asks, with each commit
    Cuts, resets and delays of links to host "metadata" work on it, too.

Buggify: `node.buggify("journal.tiny_batch", odds=0.1) -> bool`
    A point is on in a quarter of the seeds; `world.buggify.fired` counts.
"""

from tests.simulation.kernel.failures import (
    Deadlock,
    ForbiddenCall,
    InvariantBroken,
    LostTask,
    Runaway,
    SimulationFailed,
    Unhandled,
)
from tests.simulation.kernel.world import Node, Process, World

__all__ = [
    "Deadlock",
    "ForbiddenCall",
    "InvariantBroken",
    "LostTask",
    "Node",
    "Process",
    "Runaway",
    "SimulationFailed",
    "Unhandled",
    "World",
]

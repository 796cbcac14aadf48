"""Owners of the embedded metadata store die under load repeatedly, and nothing promised is lost.

- *Kill*: the owning server gets SIGKILL, another one takes over, and a new one joins the waiting.
  Sometimes a client is paused meanwhile, for less than its session time-out. Once the owner itself
  is paused for longer than that, while all clients' heartbeats wait for it.
- *Power cut*: all servers die at the same instant, every other time with all clients; the file
  system forgets un-synced data, or keeps a random share of it; then they start again. Clients that
  survive keep their sessions. Every other cut comes right after a take-over.
- *Failed fsync*: the owner ends by itself, the next one works for a while, then the power is cut.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from tests.crash import CrashResult
from tests.crash.rig import PATIENCE_S, SESSION_TIMEOUT_S, Outcome, Rig
from tests.crash.series import Report, crash_in_series
from tests.support.forgetful import ForgetfulDisk
from tests.support.processes import Child, ChildFailed, Family, family, kill_at_once

_SERVERS: Final = 3  # One owns the store and two wait, since a new process starts slowly.
_SHARES_KEPT: Final = (0.0, 0.0, 0.2, 0.5, 0.9)  # Shares of un-synced data, at a power cut.
_KILL_FIRST: Final = 0.5  # The data that the next owner finds and serves must be durable too.
_SYNC_DELAYS_S: Final = (0.0, 0.003, 0.02)  # On a slow disk, a cut hits a running write more often.
_SYNCS_FAIL_EVERY_S: Final = 1.0
_SLEEP_EVERY: Final = 10
_FAILURE_PER_CUTS: Final = 5
_REPORT_EVERY: Final = 10


class Servers:
    """The servers that may own the store; one of them does."""

    def __init__(self, folder: Path, children: Family, flaw: str) -> None:
        self.url = f"sqlite://{folder}/metadata.db"
        self._children = children
        self._flaw = flaw
        self._servers: list[Child] = []

    def create_store(self) -> None:
        creator = self._children.start_module("tests.crash.server", self.url, "create")
        if creator.wait(PATIENCE_S):
            raise ChildFailed("the store could not be created")

    def fill_up(self) -> None:
        while len(self._servers) < _SERVERS:
            server = self._children.start_module("tests.crash.server", self.url, self._flaw)
            self._servers.append(server)

    def kill_owner(self, rig: Rig) -> None:
        owner = self._owner(rig)
        owner.kill()
        self._servers.remove(owner)
        self._children.forget_ended()

    def fail_sync_of_owner(self, disk: ForgetfulDisk, rig: Rig) -> None:
        """An fsync fails, and the owner ends by itself.

        The first one may belong to a checkpoint, which SQLite repeats later without harm, since the
        log still has everything. So more syncs fail until one belongs to a commit.
        """
        ended: list[Child] = []
        fail_next_at = 0.0

        def has_ended() -> bool:
            nonlocal fail_next_at
            if time.monotonic() >= fail_next_at:
                disk.fail_sync(rig.chance.randrange(1, 20))
                fail_next_at = time.monotonic() + _SYNCS_FAIL_EVERY_S
            ended[:] = [server for server in self._servers if not server.is_running]
            return bool(ended)

        rig.listen_until(has_ended, "the owner to end")
        for server in ended:
            if (status := server.wait()) != EXIT_STORAGE_FAILED:
                rig.judge.violations.append(f"an owner whose disk failed ended with {status}")
            self._servers.remove(server)
        disk.fail_sync(0)
        self._children.forget_ended()

    def stall_owner(self, rig: Rig, for_s: float) -> None:
        owner = self._owner(rig)
        owner.stop()
        rig.listen(for_s)
        owner.resume()

    def _owner(self, rig: Rig) -> Child:
        owners: list[Child] = []

        def is_owned() -> bool:
            holders = _pids_that_hold_a_flock()
            owners[:] = [server for server in self._servers if server.pid in holders]
            return bool(owners)

        rig.listen_until(is_owned, "a server to own the store")
        if len(owners) > 1:
            rig.judge.violations.append(f"{len(owners)} servers own the store at once")
        return owners[0]

    def kill_all(self, others: list[Child]) -> None:
        kill_at_once([*self._servers, *others])
        self._servers.clear()


def _pids_that_hold_a_flock() -> set[int]:
    """Returns the pids of all processes that hold a flock, without those that wait for one."""
    lines = Path("/proc/locks").read_text().splitlines()
    fields = (line.split() for line in lines if "->" not in line)
    return {int(pid) for _, kind, _, _, pid, *_ in fields if kind == "FLOCK"}


def run_kills(folder: Path, kills: int, seed: int, report: Report, *, flaw: str = "") -> Outcome:
    with _at_work(folder, seed, flaw) as (servers, rig, _):

        def kill(number: int) -> None:
            if number % _SLEEP_EVERY == 0:
                rig.let_one_sleep(SESSION_TIMEOUT_S / 4)
            if number == kills:
                servers.stall_owner(rig, 1.2 * SESSION_TIMEOUT_S)
                rig.let_work()
            servers.kill_owner(rig)
            rig.let_recover()
            servers.fill_up()

        return _repeat(kill, kills, "owners killed", rig, report)


def run_power_cuts(
    disk: ForgetfulDisk, cuts: int, seed: int, report: Report, *, flaw: str = ""
) -> Outcome:
    with _at_work(disk.path, seed, flaw) as (servers, rig, children):

        def cut(number: int) -> None:
            everybody = number % 2 == 0
            if rig.chance.random() < _KILL_FIRST:
                servers.kill_owner(rig)
                rig.let_recover()
            servers.kill_all(rig.clients if everybody else [])
            if everybody:
                rig.bury_clients()
            disk.forget(keep=rig.chance.choice(_SHARES_KEPT), seed=rig.chance.randrange(1 << 30))
            children.forget_ended()
            servers.fill_up()
            if everybody:
                rig.start_clients()
            rig.let_recover()
            disk.slow_sync(0 if number == cuts else rig.chance.choice(_SYNC_DELAYS_S))

        return _repeat(cut, cuts, "power cuts", rig, report)


def run_failed_syncs(
    disk: ForgetfulDisk, failures: int, seed: int, report: Report, *, flaw: str = ""
) -> Outcome:
    """An fsync fails under load; the next owner works for a while; then the power is cut.

    After a failed fsync the kernel holds pages that it takes for clean and that the disk never got.
    A power cut loses data that the next owner reads from these pages and relies on.
    """
    with _at_work(disk.path, seed, flaw) as (servers, rig, children):

        def fail(_number: int) -> None:
            servers.fail_sync_of_owner(disk, rig)
            rig.let_recover()
            servers.fill_up()
            rig.let_work()
            servers.kill_all([])
            disk.forget()
            children.forget_ended()
            servers.fill_up()
            rig.let_recover()

        return _repeat(fail, failures, "failed fsyncs", rig, report)


@contextmanager
def _at_work(folder: Path, seed: int, flaw: str) -> Iterator[tuple[Servers, Rig, Family]]:
    """A new store, its servers and its clients."""
    with family() as children:
        servers = Servers(folder, children, flaw)
        rig = Rig(servers.url, children, seed)
        servers.create_store()
        servers.fill_up()
        rig.start_clients()
        yield servers, rig, children


def _repeat(
    crash: Callable[[int], None], times: int, what: str, rig: Rig, report: Report
) -> Outcome:
    """Ends early when a promise is broken."""
    number = 0
    while number < times and not rig.judge.violations:
        rig.let_work()
        number += 1
        crash(number)
        if number % _REPORT_EVERY == 0 or number == times:
            acknowledged = rig.judge.outcomes["acknowledged"]
            report(f"{number:,} of {times:,} {what}, {acknowledged:,} operations acknowledged")
    rig.let_work()
    return rig.finish(number)


def crash_it(kills: int, power_cuts: int, seed: int, report: Report) -> CrashResult:
    others = (("failed fsyncs", run_failed_syncs, -(-power_cuts // _FAILURE_PER_CUTS)),)
    return crash_in_series(kills, run_kills, power_cuts, run_power_cuts, others, seed, report, _add)


def _add(result: CrashResult, outcome: Outcome, what: str, report: Report) -> None:
    result.acknowledged += outcome.acknowledged
    result.unknown += outcome.unknown
    result.failed += len(outcome.violations)
    result.passed += outcome.crashes
    for violation in outcome.violations[:20]:
        report(f"BROKEN: {violation}")
    outages_ms = sorted(1000 * seconds for seconds in outcome.outages_s)
    report(
        f"{outcome.crashes} {what}: {outcome.acknowledged:,} operations acknowledged, "
        f"{outcome.unknown:,} unknown, {outcome.refused:,} refused, {len(outcome.violations)} "
        f"promises broken; answers again after {outages_ms[len(outages_ms) // 2]:.0f} ms (median), "
        f"{outages_ms[-1]:.0f} ms (longest)"
    )

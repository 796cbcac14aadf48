"""A cluster that Java and Rollbook share: one ZooKeeper, and bookies of both makes.

Both makes are started with the same `bk_server.conf`, whose keys are Apache's. Each process logs
into its own folder.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from rollbook.proto.ports import Address
from tests.interop import toolchain
from tests.interop.puppet import Puppet
from tests.support.bookies import cpu_s
from tests.support.java import JavaProject
from tests.support.processes import Child, Family, family
from tests.support.zookeeper import ZooKeeperTree, free_port

PATIENCE_S: Final = 90.0  # For any event, on a busy machine.
SESSION_TIMEOUT_MS: Final = 4_000
_JVM_STOPPED: Final = 128 + signal.SIGTERM  # Also after an orderly stop.
_POLL_S: Final = 0.02
ROLLBOOK: Final = (sys.executable, "-m", "rollbook.api.cli.main")
_RECOVERY_SESSION_TIMEOUT_MS: Final = 6_000  # Java's autorecovery ends when its session does.
_AUTORECOVERY: Final = "org.apache.bookkeeper.replication.AutoRecoveryMain"
_RECOVERY: Final = """
[recovery]
metadata = "{metadata}"
name = "{name}"
session_timeout_s = 4.0
[audit]
lost_bookie_delay_s = 1
[worker]
grace_s = 0.5
locked_pause_s = 0.2
[steward]
look_again_s = 1.0
"""
_LOGGED: Final = ("sh", "-c", 'exec "$@" >>"$0" 2>&1')  # The log's path and the command follow.


class Make(Enum):
    ROLLBOOK = "rollbook"
    JAVA = "java"


@dataclass(frozen=True, slots=True)
class SeenBookie:
    """A bookie as clients see it."""

    is_read_only: bool
    session: int


class Bookie:
    """One bookie across restarts; its id is `host:port` unless it has a name."""

    def __init__(
        self,
        cluster: "Cluster",
        make: Make,
        folder: Path,
        name: str,
        settings: Mapping[str, str | int],
    ) -> None:
        self._cluster = cluster
        self._more_settings = settings
        self.make = make
        self._folder = folder
        self._port = free_port()
        self._life: Child | None = None
        self._last_standing: SeenBookie | None = None  # The previous process's registration.
        self._name = name
        self.bookie_id = name or f"127.0.0.1:{self._port}"
        self.address = Address("127.0.0.1", self._port)
        self.config_path = folder / "bk_server.conf"
        self.log_path = folder / "log"
        folder.mkdir()
        self._configure(read_only=False)

    @property
    def is_running(self) -> bool:
        return self._life is not None and self._life.is_running

    @property
    def pid(self) -> int:
        """Of the current process."""
        assert self._life is not None
        return self._life.pid

    @property
    def cpu_s(self) -> float:
        """Of the current process."""
        assert self._life is not None
        return cpu_s(self._life.pid)

    @property
    def standing(self) -> SeenBookie | None:
        """None while clients do not see the bookie. They see a killed one for a while."""
        return self._cluster.standing(self.bookie_id)

    def start(self, *, read_only: bool = False) -> None:
        """Start the bookie, and wait until clients see that it serves."""
        self.begin(read_only=read_only)
        self.wait_serving(read_only=read_only)

    def begin(self, *, read_only: bool = False) -> None:
        assert not self.is_running
        self._last_standing = self.standing
        self._configure(read_only=read_only)
        if self.make is Make.ROLLBOOK:
            command = [*ROLLBOOK, "server", "bookie", "--config", str(self.config_path)]
            self._life = self._cluster.children.start(*command, log=self.log_path)
        else:
            main = "org.apache.bookkeeper.server.Main"
            command = self._cluster.project.command(main, "--conf", self.config_path)
            self._life = self._cluster.children.start(*_LOGGED, self.log_path, *command)

    def wait_serving(self, *, read_only: bool = False) -> None:
        def serves() -> bool:
            assert self.is_running, self.log_path.read_text()
            standing = self.standing
            return (
                standing is not None
                and standing != self._last_standing
                and standing.is_read_only == read_only
            )

        self._cluster.wait_until(serves, f"{self.bookie_id} serves")

    def wait_writable(self) -> None:
        """Wait until a bookie that was read-only is writable."""

        def is_writable() -> bool:
            standing = self.standing
            return standing is not None and not standing.is_read_only

        self._cluster.wait_until(is_writable, f"{self.bookie_id} is writable")

    def kill(self) -> None:
        """Send SIGKILL. The registration stays until the session expires."""
        assert self._life is not None
        self._life.kill()

    def pause(self) -> None:
        """Send SIGSTOP, and wait until the session has expired and clients do not see it."""
        assert self._life is not None
        self._last_standing = self.standing
        self._life.stop()
        self._cluster.wait_until(lambda: self.standing is None, f"{self.bookie_id} is gone")

    def resume(self) -> None:
        """Send SIGCONT, and wait until the bookie serves again."""
        assert self._life is not None
        self._life.resume()
        self.wait_serving()

    def stop(self) -> None:
        """Stop the bookie with SIGTERM."""
        assert self._life is not None
        self._life.terminate()
        assert self._life.wait(PATIENCE_S) == (0 if self.make is Make.ROLLBOOK else _JVM_STOPPED)

    def _configure(self, *, read_only: bool) -> None:
        settings: dict[str, object] = {
            "bookiePort": self._port,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": self._cluster.metadata,
            "zkTimeout": SESSION_TIMEOUT_MS,
            "journalDirectories": self._folder / "journal",
            "ledgerDirectories": self._folder / "ledgers",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            "forceReadOnlyBookie": str(read_only).lower(),
            "httpServerEnabled": "false",
        }
        if self._name:
            settings["bookieId"] = self._name
        settings |= self._more_settings
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        self.config_path.write_text(text)


def http_settings(port: int) -> dict[str, str | int]:
    """The settings of a Java bookie that serves HTTP."""
    return {
        "httpServerEnabled": "true",
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": port,
    }


class Cluster:
    """Its metadata are below one node in ZooKeeper, and its processes end with it."""

    def __init__(
        self,
        tree: ZooKeeperTree,
        children: Family,
        folder: Path,
        layout: str,
        project: JavaProject,
    ) -> None:
        self._root = f"{tree.chroot}/ledgers"
        self._folder = folder
        self._zookeeper = KazooClient(tree.server.address)
        self._zookeeper.start(PATIENCE_S)
        self.server = tree.server
        self.project = project
        self.children = children
        self.metadata = f"zk+{layout}://{tree.server.address}{self._root}"
        self.bookies: list[Bookie] = []
        self.http_port = 0  # Of the Java bookie that serves HTTP, if any.
        self._recovering: list[Child] = []

    @property
    def instance_id(self) -> str:
        value, _ = self._zookeeper.get(f"{self._root}/INSTANCEID")
        return str(value, "ascii")

    def add_bookie(
        self, make: Make, name: str = "", settings: Mapping[str, str | int] = {}
    ) -> Bookie:
        """Add a bookie without starting it; `settings` are keys of `bk_server.conf`."""
        folder = self._folder / f"bookie-{len(self.bookies) + 1}"
        bookie = Bookie(self, make, folder, name, settings)
        self.bookies.append(bookie)
        return bookie

    def start_from(self, config: Path, bookie_id: str, *more: str) -> Child:
        """Start a bookie of ours from this file, and wait until it serves under this id."""
        command = [*ROLLBOOK, "server", "bookie", "--config", str(config), *more]
        child = self.children.start(*command, log=config.with_suffix(".log"))

        def serves() -> bool:
            assert child.is_running, config.with_suffix(".log").read_text()
            return self.standing(bookie_id) is not None

        self.wait_until(serves, f"{bookie_id} serves")
        return child

    def bookie(self, bookie_id: str) -> Bookie:
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def start(self) -> None:
        """Start all bookies at the same time."""
        for bookie in self.bookies:
            bookie.begin()
        for bookie in self.bookies:
            bookie.wait_serving()

    def start_autorecovery(self) -> None:
        """Java's auditor and worker in a process of their own, under the first bookie's name."""
        self._start_java(_AUTORECOVERY, self.bookies[0].config_path)

    def start_javas_autorecovery(self, name: str, *, only_audits: bool = False) -> Child:
        """Java's auditor and worker, or its auditor alone, under a name that no bookie has.

        `shell.run` can use its configuration file, too.
        """
        settings: dict[str, object] = {
            "bookieId": name,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": self.metadata,
            "zkTimeout": _RECOVERY_SESSION_TIMEOUT_MS,
            "lostBookieRecoveryDelay": 1,
            "openLedgerRereplicationGracePeriod": 500,
            "rwRereplicateBackoffMs": 200,
        }
        config = self._folder / f"{name}.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return self._start_java("AuditorOnly" if only_audits else _AUTORECOVERY, config)

    def _start_java(self, main_class: str, config: Path) -> Child:
        if main_class == _AUTORECOVERY:
            arguments = toolchain.command(main_class, "--conf", config)
        else:
            arguments = toolchain.command(main_class, config)
        child = self.children.start(*_LOGGED, config.with_suffix(".log"), *arguments)
        self._recovering.append(child)
        return child

    def start_recovery(self, name: str, *flags: str) -> Child:
        """Start our recovery server, and wait until it is ready."""
        config = self._folder / f"{name}.toml"
        config.write_text(_RECOVERY.format(metadata=self.metadata, name=name))
        log = config.with_suffix(".log")
        command = [*ROLLBOOK, "server", "recovery", "--config", str(config), *flags]
        child = self.children.start(*command, log=log)
        assert child.line(PATIENCE_S).startswith(f"ready: recovery server {name}")
        self._recovering.append(child)
        return child

    def end_recovery(self) -> None:
        """Kill all recovery processes, and wait until there are no candidates and no locks."""
        for child in self._recovering:
            child.kill()  # An orderly stop of Java's may take 30 s.
        self._recovering = []
        locks = f"{self._root}/underreplication/locks"
        self.wait_until(
            lambda: not self.auditors() and not self._children(locks), "their sessions are over"
        )

    def puppet(self) -> Puppet:
        """The Java client."""
        log_path = self._folder / "puppet.log"
        return Puppet(
            self.children.start(
                "sh", "-c", 'exec "$@" 2>>"$0"', log_path, *toolchain.command("Puppet")
            )
        )

    def standing(self, bookie_id: str) -> SeenBookie | None:
        for folder in ("available", "available/readonly"):
            stat = self._zookeeper.exists(f"{self._root}/{folder}/{bookie_id}")
            if stat:
                return SeenBookie(folder.endswith("readonly"), stat.ephemeralOwner)
        return None

    def marked(self) -> list[int]:
        """Ledgers that lack copies, as auditors have marked them."""
        found = []
        folders = [f"{self._root}/underreplication/ledgers"]
        while folders:
            folder = folders.pop()
            for name in self._children(folder):
                if name.startswith("urL"):
                    found.append(int(name.removeprefix("urL")))
                else:
                    folders.append(f"{folder}/{name}")
        return found

    def remove_marks(self) -> None:
        """Delete all marks. No worker may be running."""
        folder = f"{self._root}/underreplication/ledgers"
        for name in self._children(folder):
            self._zookeeper.delete(f"{folder}/{name}", recursive=True)

    def auditors(self) -> list[str]:
        """The candidates for auditor, the leader first."""
        folder = f"{self._root}/underreplication/auditorelection"
        found = []
        for name in sorted(self._children(folder), key=lambda name: int(name.removeprefix("V_"))):
            with contextlib.suppress(NoNodeError):
                value, _ = self._zookeeper.get(f"{folder}/{name}")
                found.append(str(value, "ascii").split('"')[1])
        return found

    def _children(self, folder: str) -> list[str]:
        try:
            names: list[str] = self._zookeeper.get_children(folder)
        except NoNodeError:
            return []
        return names

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s: {what}"
            time.sleep(_POLL_S)

    def close(self) -> None:
        self._zookeeper.stop()
        self._zookeeper.close()


@contextmanager
def empty(
    tree: ZooKeeperTree,
    folder: Path,
    layout: str = "hierarchical",
    project: JavaProject = toolchain.PROJECT,
) -> Iterator[Cluster]:
    """A cluster without metadata and bookies yet; Java programs run from `project`."""
    with family() as children:
        cluster = Cluster(tree, children, folder, layout, project)
        try:
            yield cluster
        finally:
            cluster.close()

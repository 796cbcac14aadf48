"""A real ZooKeeper for tests: one process, removed afterwards, even if the tests are killed.

Sources, in this order: the server at `$ROLLBOOK_TEST_ZK` (`host:port`; tests cannot stop or kill
it), Java with the jars in the `pyspark` package (3.9), Java with Debian's `zookeeper` package.
Without any of them `find()` raises an error that says what is missing.

Ticks are short, so a session lives for 1 s or more, and nothing is synced to disk: a SIGKILL of
the server loses nothing, a power cut would.

The fixtures `zookeeper_server` (one per test session) and `zookeeper` (a separate tree in it) are
for import into a `conftest.py`; outside pytest use `with running() as server`.
"""

import asyncio
import contextlib
import functools
import glob
import importlib.util
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient

from tests.tally import missing_piece

ADDRESS_VARIABLE: Final = "ROLLBOOK_TEST_ZK"
TICK_MS: Final = 500
SESSION_TIMEOUT_S_MIN: Final = 2 * TICK_MS / 1000
_PORTS: Final = range(20_000, 32_000)  # Below the ports of outgoing connections.
_READY_TIMEOUT_S: Final = 60  # For a cold page cache on a loaded machine; usually 1 to 2 s.
_STOP_TIMEOUT_S: Final = 10
_POLL_S: Final = 0.05

_DEBIAN_JARS: Final = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",  # KiB of log per file, instead of 64 MiB.
    "-Dlog4j2.level=warn",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# Kills the server and removes its files when this process ends for any reason: then the
# pipe ends without a line.
_GUARD: Final = 'read line || { kill -9 "$1"; rm -rf "$2"; }'

_CLOSE_SESSION: Final = -11
HOW_TO_ENABLE: Final = (
    f"install a Java runtime (apt-get install default-jre-headless) and `pip install pyspark`, or "
    f"apt-get install zookeeper, or set {ADDRESS_VARIABLE}=host:port"
)


class NoZooKeeper(Exception):
    """There is no ZooKeeper on this machine; the message says how to get it."""


class ZooKeeperServer:
    """A server's address, and its process if we started it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def can_fail(self) -> bool:
        """Whether tests may stop, kill and pause it."""
        return False

    def ask(self, word: str, timeout_s: float = 2) -> str:
        """Sends one of ZooKeeper's four-letter words, for instance `srvr` or `cons`."""
        with socket.create_connection((self.host, self.port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(word.encode())
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()

    def is_ready(self) -> bool:
        """Whether it serves. A server that loads its data listens already but does not serve."""
        try:
            return "Zookeeper version" in self.ask("srvr")
        except OSError:
            return False


class LocalZooKeeper(ZooKeeperServer):
    """A server of the tests in its own folder. Not thread-safe."""

    def __init__(
        self,
        directory: str,
        class_path: Sequence[str],
        config: Sequence[str] = (),
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(host, free_port())
        self._directory = directory
        self._class_path = class_path
        self._config = config
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def can_fail(self) -> bool:
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def start(self) -> None:
        """Returns when it serves. After a stop or a kill it has its data and port again."""
        assert self._process is None, "already running"
        log_path = os.path.join(self._directory, "log")
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is only for the tests, which stop the server.
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self._process.pid), self._directory],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start:\n{_tail(log_path)}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stops it cleanly. Sessions continue when it is started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Makes it keep its connections and port but answer nothing, like a hung machine."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 5
        while not _is_stopped(self.pid) and time.monotonic() < deadline_s:
            time.sleep(0.001)  # Its threads stop one by one, and a running one may still answer.

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ensure_serving(self) -> None:
        """Makes it serve again after a pause, a stop or a kill."""
        if self._process is None:
            self.start()
        else:
            self.resume()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # In case it was paused.
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._guard is not None:
            self._guard.communicate(b"\n")  # A whole line: nothing to kill.
            self._guard = None

    def _command(self) -> list[str]:
        config = os.path.join(self._directory, "zoo.cfg")
        with open(config, "w") as file:
            file.write(
                f"tickTime={TICK_MS}\n"
                f"dataDir={self._directory}/data\n"
                f"clientPort={self.port}\n"
                f"clientPortAddress={self.host}\n"
                "admin.enableServer=false\n"
                "4lw.commands.whitelist=*\n"
                "maxClientCnxns=0\n"
                f"minSessionTimeout={2 * TICK_MS}\n"
            )
            file.writelines(f"{line}\n" for line in self._config)
        class_path = ":".join(self._class_path)
        java = [_java(), *_JVM_OPTIONS, "-cp", class_path, _MAIN_CLASS, config]
        return [*self._prefix, *java]


@contextlib.contextmanager
def running(
    config: Sequence[str] = (), *, host: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> Iterator[ZooKeeperServer]:
    """Yields a server that is ready, and removes it and its files at the end. Raises `NoZooKeeper`.

    `config` has lines for its configuration, and `prefix` words before its command that make it run
    where `host` is. Both need a local server.
    """
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if address and not config and not prefix:
        host, _, port = address.rpartition(":")
        server = ZooKeeperServer(host, int(port))
        if not server.is_ready():
            raise NoZooKeeper(f"{ADDRESS_VARIABLE}={address} does not answer `srvr`")
        yield server
        return
    class_path = find()
    with tempfile.TemporaryDirectory(prefix="rollbook-zk-") as directory:
        local = LocalZooKeeper(directory, class_path, config, host, prefix)
        try:
            local.start()
            yield local
        finally:
            local.kill()


def find() -> list[str]:
    """The class path of a ZooKeeper that this machine can run. Raises `NoZooKeeper`."""
    if not _java():
        raise NoZooKeeper("no Java runtime that runs")
    spark = importlib.util.find_spec("pyspark")
    for folder in (spark and spark.submodule_search_locations) or ():
        if glob.glob(f"{folder}/jars/zookeeper-[0-9]*.jar"):
            return [f"{folder}/jars/*"]
    if os.path.exists(_DEBIAN_JARS[0]):
        return list(_DEBIAN_JARS)
    raise NoZooKeeper("Java is there, but neither pyspark's jars nor Debian's zookeeper")


@functools.cache
def _java() -> str:
    """A `java` that runs. Some systems have shims on the PATH that fail."""
    home = os.environ.get("JAVA_HOME")
    candidates = (home and f"{home}/bin/java", shutil.which("java"))
    return next((java for java in candidates if java and _runs(java)), "")


def _runs(java: str) -> bool:
    try:
        return subprocess.run([java, "-version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def free_port() -> int:
    """A free port that the system does not use for outgoing connections.

    ZooKeeper does not support port 0, and needs the same port again after a kill.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _tail(path: str, lines: int = 30) -> str:
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-lines:])


# --- Sessions -----------------------------------------------------------------------------------


async def end_session(server: ZooKeeperServer, session: int, password: bytes) -> None:
    """Ends a session as if it had expired. The client must be disconnected first.

    Otherwise it would take the session back.
    """
    reader, writer = await asyncio.open_connection(server.host, server.port)

    async def ask(request: bytes) -> bytes:
        writer.write(len(request).to_bytes(4) + request)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))

    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            hello = struct.pack("!iqiqi", 0, 0, 10_000, session, len(password))
            answer = await ask(hello + password + b"\0")
            assert int.from_bytes(answer[4:8]) > 0, "the session is over already"
            await ask(struct.pack("!ii", 1, _CLOSE_SESSION))
    finally:
        writer.close()


# --- Fixtures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZooKeeperTree:
    """A subtree of a server for one test: its clients see `chroot` as their `/`."""

    server: ZooKeeperServer
    chroot: str


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    with running_or_skipped() as server:
        yield server


@contextlib.contextmanager
def running_or_skipped(config: Sequence[str] = ()) -> Iterator[ZooKeeperServer]:
    """Like `running`, but skips the test without ZooKeeper, or fails it if ZooKeeper is required."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running(config))
        except NoZooKeeper as error:
            pytest.skip(missing_piece("zk", str(error), HOW_TO_ENABLE))
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperTree]:
    with tree(zookeeper_server) as own:
        yield own


@contextlib.contextmanager
def tree(server: ZooKeeperServer) -> Iterator[ZooKeeperTree]:
    """Yields an empty tree and removes it afterwards, because the server may be a user's."""
    chroot = f"/rollbook-test-{os.urandom(8).hex()}"
    with _client(server) as client:
        client.create(chroot)
    yield ZooKeeperTree(server, chroot)
    if server.is_ready():
        with _client(server) as client:
            client.delete(chroot, recursive=True)


@contextlib.contextmanager
def _client(server: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(server.address)
    client.start(_READY_TIMEOUT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _is_stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped; true without /proc."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # The thread has just ended.
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in tasks)

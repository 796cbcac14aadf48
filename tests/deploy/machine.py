"""A machine with the units of `compose/systemd`: Debian 12 in a container, systemd 252 as its first process.

The test runs the commands of docs/deploy.md as root, and systemd starts, restarts, confines and
stops the servers. The folder that they may write to is a small disk.
"""

import json
import re
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from tests.deploy import images
from tests.deploy.cluster import Cluster
from tests.deploy.engine import CommandFailed, Engine
from tests.deploy.images import ROOT, Images, NotFetched

UNITS: Final = ("bookie", "log", "recovery")
_NAME, _NETWORK = "rollbook-machine", "rollbook-machine"
_ZOOKEEPER: Final = "rollbook-machine-zookeeper"
_ZOOKEEPER_NAMES: Final = (
    "zk1",
    "zk2",
    "zk3",
)  # The names in the page's settings: one server has all of them.
_HIERARCHY: Final = Path("/sys/fs/cgroup/systemd")
_PROGRAM: Final = "/opt/rollbook/bin/rollbook"
_FOLDER: Final = "/var/lib/rollbook"
_FILLER: Final = f"{_FOLDER}/of-another-program"
_DISK_MIB: Final = 512
# Uses the addresses of the page's settings.
_PROBES: Final = {
    "bookie": "http://127.0.0.1:8001/heartbeat",
    "log": "http://127.0.0.1:7480/readyz",
    "recovery": "http://127.0.0.1:7500/heartbeat",
}
_GET: Final = (
    "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=20).read().decode())"
)
_WITHIN_S: Final = 90.0
_EXPOSURE_MAX: Final = 20  # On a scale to 100; systemd prints it as 2.0.
_UNAVAILABLE: Final = 5


class Machine:
    def __init__(self, engine: Engine, built: Images) -> None:
        if not _HIERARCHY.is_dir():
            raise NotFetched(
                f"systemd needs {_HIERARCHY}: mount -t cgroup -o none,name=systemd cgroup {_HIERARCHY}"
            )
        self._engine = engine
        self._zookeeper = built.zookeeper
        page = (ROOT / "docs" / "deploy.md").read_text()
        self._section = page[page.index("\n## systemd\n") :]
        blocks = re.findall(r"\n\n((?:    .*\n)+)", self._section)
        self._install, self._start = (textwrap.dedent(each) for each in blocks)

    def build(self) -> None:
        images.build_machine(self._engine, self._install)

    def boot(self) -> None:
        docker = self._engine.docker
        docker("network", "create", _NETWORK)
        docker(
            "run",
            "--detach",
            f"--name={_ZOOKEEPER}",
            f"--network={_NETWORK}",
            *(f"--network-alias={each}" for each in _ZOOKEEPER_NAMES),
            "--env=JVMFLAGS=-Xmx128m",
            self._zookeeper,
        )
        docker(
            "run",
            "--detach",
            f"--name={_NAME}",
            f"--network={_NETWORK}",
            "--hostname=machine",
            # Capabilities of a machine's root, as far as the units' settings need them.
            "--cap-add=SYS_ADMIN",
            "--cap-add=SYS_PTRACE",
            "--security-opt=seccomp=unconfined",
            "--tmpfs=/run",
            "--tmpfs=/tmp",
            f"--tmpfs={_FOLDER}:size={_DISK_MIB}m",
            f"--volume={_HIERARCHY}:{_HIERARCHY}",
            images.MACHINE,
        )
        Cluster.until(self._is_booted, _WITHIN_S, "systemd has started the machine")
        assert self._run("cat", "/proc/1/comm") == "systemd"
        settings = re.findall(
            r"^```toml\n# (\S+)\n(.*?)^```", self._section, re.MULTILINE | re.DOTALL
        )
        assert len(settings) == len(UNITS)
        for path, text in settings:
            self._run("sh", "-c", f"cat > {path}", text=text)

    def require_start_waits(self) -> None:
        """Without a cluster, servers run but are not ready, so their units must stay `activating`."""
        self._run("systemctl", "start", "--no-block", *(f"rollbook-{unit}" for unit in UNITS))
        for unit in UNITS:
            Cluster.until(partial(self._waits, unit), _WITHIN_S, f"{unit} waits for a cluster")
            assert self._property(unit, "ActiveState") == "activating", unit

    def start_as_the_page_does(self) -> None:
        """Starts the units. When `systemctl` returns, every server must answer its first request."""
        self._run("bash", "-euc", self._start)
        self._require_serving()

    def require_confined(self) -> None:
        user = self._run("id", "--user", "rollbook")
        for unit in UNITS:
            pid = self._property(unit, "MainPID")
            status = self._run("cat", f"/proc/{pid}/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert fields["Uid"].split() == [user] * 4, unit
            assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0, unit
            assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2"), unit
            for path in ("/opt/rollbook/written", "/etc/rollbook/written"):
                self._require_read_only(pid, path)
            threshold = f"--threshold={_EXPOSURE_MAX}"
            self._run("systemd-analyze", "security", threshold, "--no-pager", f"rollbook-{unit}")

    def _require_read_only(self, pid: str, path: str) -> None:
        said = ""
        try:
            self._run("nsenter", f"--target={pid}", "--mount", "touch", path)
        except CommandFailed as error:
            said = str(error)
        assert "Read-only file system" in said, f"{path} can be written: {said}"

    def append(self, value: str) -> None:
        self._rollbook("log", "append", "orders", "--timeout=60", text=f"{value}\n")

    def make_log(self) -> None:
        self._rollbook("log", "create", "orders", "--copies=1")

    def read(self) -> list[str]:
        return self._rollbook("log", "read", "orders", "--timeout=60", "-o", "raw").splitlines()

    def kill(self, unit: str) -> None:
        """Kills the server and requires that systemd restarts it."""
        pid, restarts = self._property(unit, "MainPID"), int(self._property(unit, "NRestarts"))
        # There is no program `kill`, only the built-in command.
        self._run("bash", "-c", f"kill -9 {pid}")

        def is_back() -> bool:
            state = self._properties(unit)
            return state["ActiveState"] == "active" and state["MainPID"] not in (pid, "0")

        Cluster.until(is_back, _WITHIN_S, f"{unit} is back")
        # There is more than one restart if the server ended while a dependency was missing.
        assert int(self._property(unit, "NRestarts")) > restarts
        self._require_serving(unit)

    def stop(self, unit: str) -> float:
        """Returns the seconds. The server must exit with success before systemd would kill it."""
        started = time.monotonic()
        self._run("systemctl", "stop", f"rollbook-{unit}", timeout_s=200)
        took_s = time.monotonic() - started
        state = self._properties(unit)
        found = [state[each] for each in ("ActiveState", "Result", "ExecMainStatus")]
        assert found == ["inactive", "success", "0"], f"{unit}: {found}"
        return took_s

    def start(self) -> None:
        self._run("systemctl", "start", *(f"rollbook-{unit}" for unit in UNITS), timeout_s=200)
        self._require_serving()

    def fill_disk(self) -> None:
        """Fills the disk like another program: the bookie must become read-only and say what to do."""
        pid = self._property("bookie", "MainPID")
        with suppress(CommandFailed):
            self._run("dd", "if=/dev/zero", f"of={_FILLER}", "bs=64k")
            raise AssertionError("the disk cannot be filled")
        Cluster.until(self._is_read_only, _WITHIN_S, "the bookie is read-only")
        self._require_refused()
        assert self._property("bookie", "MainPID") == pid
        assert "disk full" in self._journal("bookie")

    def require_start_on_full_disk(self) -> None:
        self._run("systemctl", "restart", "rollbook-bookie", timeout_s=200)
        self._require_serving("bookie")
        assert self._is_read_only()

    def make_room(self) -> None:
        self._run("rm", _FILLER)
        Cluster.until(lambda: not self._is_read_only(), _WITHIN_S, "the bookie takes entries")

    def shut_down(self) -> None:
        self._engine.docker("stop", "--time=60", _NAME, timeout_s=90)
        code = self._engine.inspect(_NAME, "{{.State.ExitCode}}")
        assert code != "137", "systemd was killed"

    def logs(self) -> str:
        with suppress(CommandFailed):
            return self._run("journalctl", "--lines=40", "--output=cat", "--no-pager")
        return ""

    def remove(self) -> None:
        for name in (_NAME, _ZOOKEEPER):
            with suppress(CommandFailed):
                self._engine.docker("rm", "--force", "--volumes", name)
        with suppress(CommandFailed):
            self._engine.docker("network", "rm", _NETWORK)

    # --- Commands of the machine --------------------------------------------------------------

    def _run(self, *words: str, text: str | None = None, timeout_s: float = 120.0) -> str:
        return self._engine.docker(
            "exec", "--interactive", _NAME, *words, text=text, timeout_s=timeout_s
        )

    def _rollbook(self, *words: str, text: str | None = None) -> str:
        return self._run(_PROGRAM, *words, text=text)

    def _is_booted(self) -> bool:
        with suppress(CommandFailed):
            return self._run("systemctl", "is-system-running") == "running"
        return False

    def _properties(self, unit: str) -> dict[str, str]:
        lines = self._run("systemctl", "show", f"rollbook-{unit}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def _property(self, unit: str, name: str) -> str:
        return self._properties(unit)[name]

    def _journal(self, unit: str) -> str:
        return self._run("journalctl", f"--unit=rollbook-{unit}", "--output=cat", "--no-pager")

    def _waits(self, unit: str) -> bool:
        return "startup_waits" in self._journal(unit)

    def _get(self, url: str) -> str:
        return self._run("/opt/rollbook/bin/python", "-c", _GET, url)

    def _require_serving(self, *units: str) -> None:
        for unit in units or UNITS:
            assert self._property(unit, "ActiveState") == "active", unit
            self._get(_PROBES[unit])

    def _is_read_only(self) -> bool:
        state = json.loads(self._get("http://127.0.0.1:8001/api/v1/bookie/state"))
        return bool(state["readOnly"])

    def _require_refused(self) -> None:
        said = ""
        try:
            self._rollbook("log", "append", "orders", text="no room\n")
        except CommandFailed as error:
            said = str(error)
        assert said, "a bookie without room acknowledged a record"
        assert f"exit {_UNAVAILABLE}\n" in said, said
        assert "make room on bookie bk-1" in said, said


@contextmanager
def installed(engine: Engine, built: Images) -> Iterator[Machine]:
    machine = Machine(engine, built)
    try:
        yield machine
    finally:
        machine.remove()

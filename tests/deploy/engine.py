"""A Docker engine for a test: the running one, or a temporary one that leaves nothing behind.

The temporary engine keeps everything in one folder. It has no default bridge and changes neither
the firewall nor forwarding. Containers of a network reach each other, and the machine reaches
published ports.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1
_SETTINGS: Final = {
    "bridge": "none",
    "iptables": False,
    "ip6tables": False,
    "ip-forward": False,
    "ip-masq": False,
}
_PREFIX: Final = "rb-docker-"  # The prefix of an engine's folder.
_CGROUPS: Final = Path("/sys/fs/cgroup")
# These variables would choose another engine, builder or project.
_MISLEADING: Final = ("DOCKER_", "COMPOSE_", "ROLLBOOK_")


class NoEngine(Exception):
    """There is no engine, or it cannot run containers; the message says why."""


class CommandFailed(Exception):
    """A command of Docker failed; the message has its output."""


class Engine:
    """Runs Docker commands with one engine."""

    def __init__(self, address: str = "", *, is_own: bool = False) -> None:
        self.is_own = is_own
        self.cgroup = (
            ""  # The parent of its containers' control groups, if the engine is the test's own.
        )
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(_MISLEADING)
        }
        if not address:  # Use the engine that the machine's settings name.
            kept |= {
                name: os.environ[name]
                for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH")
                if name in os.environ
            }
        self.environment = kept | ({"DOCKER_HOST": address} if address else {})

    def docker(self, *words: str, timeout_s: float = 120.0, text: str | None = None) -> str:
        """Runs `docker WORDS` and returns its output without the last line break. Raises `CommandFailed`."""
        return self.run("docker", *words, timeout_s=timeout_s, text=text)

    def run(
        self,
        *command: str,
        timeout_s: float = 120.0,
        text: str | None = None,
        environment: Mapping[str, str] = {},
    ) -> str:
        try:
            done = subprocess.run(
                command,
                env={**self.environment, **environment},
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"{' '.join(command)}: no end within {timeout_s:g} s") from error
        if done.returncode != 0:
            raise CommandFailed(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout.rstrip("\n")

    def cpu_s(self) -> float:
        """CPU seconds used by its containers; 0 if the kernel does not report them."""
        for path in (f"cpuacct/{self.cgroup}/cpuacct.usage", f"{self.cgroup}/cpu.stat"):
            with contextlib.suppress(OSError):
                words = (_CGROUPS / path).read_text().split()
                return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6
        return 0.0

    def inspect(self, container: str, template: str) -> str:
        return self.docker("inspect", "--format", template, container)


@contextlib.contextmanager
def running() -> Iterator[Engine]:
    """A temporary engine if root can start one, otherwise the running one. Raises `NoEngine`."""
    if shutil.which("docker") is None:
        raise NoEngine("there is no docker")
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        found = Engine()
        try:
            found.docker("version", timeout_s=10)
        except CommandFailed as error:
            why = "no engine answers, and only root can start one, with dockerd"
            raise NoEngine(why) from error
        yield found
        return
    before = _networking()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        process = _start(Path(folder))
        try:
            engine = Engine(f"unix://{folder}/socket", is_own=True)
            engine.cgroup = Path(folder).name
            _await_answer(engine, process, Path(folder))
            if engine.docker("info", "--format", "{{.Driver}}") == "vfs":
                raise NoEngine(f"{folder} is on a file system where images have no layers")
            yield engine
        finally:
            _stop(process, Path(folder))
    left = _left_of(Path(folder).name)
    if not _others():  # Other engines create and remove bridges, too.
        left += [each for each in _networking() if each not in before]
    if left:
        raise AssertionError(f"the engine left on this machine: {'; '.join(left)}")


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    settings = folder / "daemon.json"
    settings.write_text(json.dumps(_SETTINGS))
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [
                # The engine stops cleanly, even if the test is killed.
                "setpriv",
                "--pdeathsig",
                "TERM",
                "--",
                "dockerd",
                f"--config-file={settings}",
                f"--data-root={folder}/data",
                f"--exec-root={folder}/exec",
                f"--pidfile={folder}/pid",
                f"--host=unix://{folder}/socket",
                f"--cgroup-parent=/{folder.name}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _await_answer(engine: Engine, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(CommandFailed):
            engine.docker("version", timeout_s=10)
            return
        if process.poll() is not None or time.monotonic() > deadline_s:
            lines = (folder / "log").read_text(errors="replace").splitlines()
            raise NoEngine("dockerd does not start: " + " / ".join(lines[-3:]))
        time.sleep(_POLL_S)


def _stop(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for point in sorted(_mounts(), reverse=True):  # `exec/netns/default` stays mounted.
        if point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", point], check=False)
    for root, folders, _ in os.walk(_CGROUPS):
        if folder.name in folders:
            _remove_cgroup(os.path.join(root, folder.name))


def _remove_cgroup(top: str) -> None:
    for root, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # Folders still in use are reported as left over.
            os.rmdir(root)


def _left_of(name: str) -> list[str]:
    """Left-over processes, mounts and control groups of the engine with that folder name."""
    groups = [os.path.join(root, name) for root, names, _ in os.walk(_CGROUPS) if name in names]
    return [
        *(f"process {each}" for each in _processes() if name in each),
        *(f"mount {each}" for each in _mounts() if name in each),
        *(f"control group {each}" for each in groups),
    ]


def _others() -> list[str]:
    """Engines of other runs."""
    return [each for each in _processes() if _PREFIX in each]


def _networking() -> list[str]:
    """Interfaces with Docker's names, and firewall rules."""
    names = sorted(os.listdir("/sys/class/net"))
    interfaces = [name for name in names if name.startswith(("br-", "veth", "docker"))]
    return [*(f"interface {name}" for name in interfaces), *_firewall_rules()]


def _mounts() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _processes() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                found.append(f"{name} {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def _firewall_rules() -> list[str]:
    rules = []
    for program in ("iptables-save", "ip6tables-save"):
        if path := shutil.which(program):
            done = subprocess.run([path], capture_output=True, text=True, check=False)
            # Without packet counts.
            lines = [line.partition("[")[0] for line in done.stdout.splitlines()]
            rules += [f"{program}: {line}" for line in lines if not line.startswith("#")]
    return rules

"""The cluster of `compose/compose.yaml` in a Docker engine, with traffic."""

import contextlib
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.deploy import images
from tests.deploy.engine import CommandFailed, Engine
from tests.deploy.images import ROOT, Images

TRAFFIC: Final = Path(__file__).with_name("traffic_program.py")
_POLL_S: Final = 0.2


class Cluster:
    def __init__(
        self,
        engine: Engine,
        built: Images,
        project: str = "rollbook-test",
        files: Sequence[str] = ("compose.yaml",),
    ) -> None:
        self.engine = engine
        self.project = project
        self.image = built.rollbook
        self.has_tls = len(files) > 1
        self._compose = images.compose_command()
        self._files = [word for file in files for word in ("--file", str(ROOT / "compose" / file))]
        first = _free_ports(9)
        # Ports for gRPC and HTTP, one for each possible log server, and the port of Prometheus.
        self.port, self.http_port, self.prometheus_port = first, first + 4, first + 8
        self._settings = {
            "ROLLBOOK_IMAGE": built.rollbook,
            "ZOOKEEPER_IMAGE": built.zookeeper,
            "ROLLBOOK_PORTS": f"{first}-{first + 3}",
            "ROLLBOOK_HTTP_PORTS": f"{first + 4}-{first + 7}",
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }

    def compose(self, *words: str, timeout_s: float = 200.0, image: str = "") -> str:
        return self.engine.run(
            *self._compose,
            "--project-name",
            self.project,
            *self._files,
            *words,
            timeout_s=timeout_s,
            environment=self._settings | ({"ROLLBOOK_IMAGE": image} if image else {}),
        )

    def up(self, *words: str, timeout_s: float = 200.0, image: str = "") -> float:
        """Starts the services and waits until all are healthy; returns the seconds."""
        started = time.monotonic()
        self.compose(
            "up", "--detach", "--wait", "--no-build", *words, timeout_s=timeout_s, image=image
        )
        return time.monotonic() - started

    def down(self, *words: str) -> float:
        started = time.monotonic()
        self.compose("--profile=*", "down", *words)
        return time.monotonic() - started

    def containers(self, service: str = "") -> list[str]:
        """Names of the running containers; `init` has ended."""
        names = self.compose("ps", "--format", "{{.Name}}", *([service] if service else []))
        return sorted(names.split())

    def use_image(self, image: str) -> None:
        self.image = self._settings["ROLLBOOK_IMAGE"] = image

    def network(self) -> str:
        return f"{self.project}_default"

    def read(self, path: str, service: str = "log") -> str:
        """Contents of a file in a container."""
        return self.engine.docker("exec", self.containers(service)[0], "cat", path)

    def published(self, service: str, port: int) -> list[int]:
        """The ports on 127.0.0.1 of the service's containers."""
        found = [self.engine.docker("port", name, str(port)) for name in self.containers(service)]
        return sorted(int(each.rpartition(":")[2]) for each in found)

    def kill(self, container: str) -> None:
        """Kills the process; the engine restarts it, as after a crash."""
        pid = self.engine.inspect(container, "{{.State.Pid}}")
        if self.engine.is_own:
            subprocess.run(["kill", "-9", pid], check=True)
        else:  # The pid may be unknown here, and the engine does not restart after `docker kill`.
            self.engine.docker("kill", container)
            self.engine.docker("start", container)

    def await_healthy(self, container: str, timeout_s: float = 60.0) -> None:
        def is_healthy() -> bool:
            state = json.loads(self.engine.inspect(container, "{{json .State}}"))
            return bool(state["Running"] and state["Health"]["Status"] == "healthy")

        self.until(is_healthy, timeout_s, f"{container} is healthy")

    def zookeeper_leader(self) -> str:
        ask = "exec 3<>/dev/tcp/127.0.0.1/2181 && printf srvr >&3 && cat <&3"
        for number in (1, 2, 3):
            with contextlib.suppress(CommandFailed):
                name = f"{self.project}-zookeeper-{number}-1"
                if "Mode: leader" in self.engine.docker("exec", name, "bash", "-c", ask):
                    return name
        raise AssertionError("no ZooKeeper leads")

    @contextlib.contextmanager
    def disconnected(self, container: str) -> Iterator[None]:
        service = self.engine.inspect(
            container, '{{index .Config.Labels "com.docker.compose.service"}}'
        )
        self.engine.docker("network", "disconnect", self.network(), container)
        try:
            yield
        finally:
            self.engine.docker("network", "connect", "--alias", service, self.network(), container)

    def run_example(self) -> None:
        """Runs the profile `example`: its tailer survives a kill of its writer and sees each record
        once.
        """
        self.up("example-writer", "example-tailer")

        def read() -> int:
            log = self.compose("logs", "--no-log-prefix", "--tail=1", "example-tailer")
            found = re.fullmatch(r"(\d+) records read in order", log.strip())
            return int(found[1]) if found else 0

        self.until(lambda: read() > 0, 60, "the example reads records")
        self.kill(self.containers("example-writer")[0])
        before = read()
        self.until(lambda: read() > before + 50, 60, "the example reads on")
        (tailer,) = self.containers("example-tailer")
        assert self.engine.inspect(tailer, "{{.State.Status}}") == "running"

    def logs(self, lines: int = 15) -> str:
        with contextlib.suppress(CommandFailed):
            return self.compose("logs", "--no-color", f"--tail={lines}")
        return ""

    @staticmethod
    def until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
            time.sleep(_POLL_S)


class Traffic:
    """A writer and a tailer in a separate container."""

    def __init__(
        self, cluster: Cluster, offset: int = 0, log_name: str = "default/traffic"
    ) -> None:
        self._cluster = cluster
        self.acked = self.read = 0
        self.retries = 0
        self._last = ""
        self._process = subprocess.Popen(
            [
                "docker",
                "run",
                "--rm",
                "--interactive",
                f"--network={cluster.network()}",
                f"--name={cluster.project}-traffic",
                "--read-only",
                "--tmpfs=/tmp",
                f"--volume={TRAFFIC}:/traffic.py:ro",
                *_shown(cluster),
                "--entrypoint=python",
                cluster.image,
                "/traffic.py",
                log_name,
                str(offset),
            ],
            env=cluster.engine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._last = line.rstrip()
            if line[0].isdigit():
                self.acked, self.read = map(int, line.split())
            elif line.startswith("again "):
                self.retries += 1

    def flows(self, timeout_s: float = 60.0, records: int = 50) -> float:
        """Waits until that many more records are acknowledged and read; returns the seconds."""
        started = time.monotonic()
        acked, read = self.acked + records, self.read + records

        def more() -> bool:
            assert self._process.poll() is None, f"traffic ended: {self._last}"
            return self.acked >= acked and self.read >= read

        Cluster.until(more, timeout_s, f"traffic flows: {self.acked}, {self.read}, {self._last}")
        return time.monotonic() - started

    def end(self) -> int:
        """Ends the traffic, checks that all records were read once and in order; returns their
        number.
        """
        assert self._process.stdin
        self._process.stdin.close()
        code = self._process.wait(150)
        self._listener.join(10)
        assert code == 0, f"traffic: {self._last}"
        assert self._last.startswith("done "), self._last
        return int(self._last.split()[1])

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            with contextlib.suppress(CommandFailed):
                self._cluster.engine.docker("rm", "--force", f"{self._cluster.project}-traffic")


def _shown(cluster: Cluster) -> list[str]:
    """The options with which the traffic's container connects to the cluster."""
    if not cluster.has_tls:
        return ["--env=ROLLBOOK_SERVER=log://log:7400"]
    return [
        f"--volume={cluster.project}_tls:/etc/rollbook/tls:ro",
        "--env=FOLDER=/etc/rollbook/tls",
        "--env=ROLLBOOK_SERVER=log+tls://log:7400",
    ]


def _free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free."""
    for first in range(20_480, 32_000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")

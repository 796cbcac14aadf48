"""`python -m tests deploy`: the cluster of docs/deploy.md under the failures that people try first."""

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Final

from tests.deploy import engine, images
from tests.deploy.cluster import Cluster, Traffic
from tests.deploy.engine import CommandFailed, Engine, NoEngine
from tests.deploy.images import NotFetched
from tests.tally import Tally, missing_piece

PIECE: Final = "docker"
HOW_TO_ENABLE: Final = (
    "apt-get install --no-install-recommends docker.io mmdebstrap, and once a way to Debian's archive and PyPI, "
    "as root; or a Docker engine that runs and can pull images"
)
HEALTHY_WITHIN_S: Final = 90.0
SHARED_WITHIN_S: Final = 180.0  # Where other kinds of tests have the processors, too.
DOWN_WITHIN_S: Final = 15.0
IMAGE_BYTES_MAX: Final = 80_000_000  # Over its base.
_USER: Final = "10001:10001"
_ROLLBOOK: Final = ("bookie", "log", "recovery")
_OUTAGE_S: Final = 30.0  # Longer than any session of ZooKeeper.
_CUT_S: Final = 4.0

Say = Callable[[str], None]


def prepare(say: Say) -> Tally:
    """Downloads what a run needs, and shows that the engine can run a container."""
    try:
        with engine.running() as found:
            images.prepare(found)
            if found.is_own:
                images.import_system(found)
                found.docker("run", "--rm", "--network=none", images.SYSTEM, "python3", "--version")
    except (NoEngine, NotFetched, CommandFailed, AssertionError, OSError) as error:
        return Tally("steps", skipped=[f"{PIECE}: {error}; to enable: {HOW_TO_ENABLE}"])
    say(f"an engine can be run, and what it needs is in {images.FOLDER}")
    return Tally("steps", passed=1)


def run(say: Say, *, has_all: bool, downloads: bool = True) -> Tally:
    tally = Tally("steps")
    try:
        with engine.running() as found:
            images.prepare(found, downloads=downloads)
            try:
                one = _Run(found, tally, say, is_alone=has_all)
                one.all() if has_all else one.short()
            except _Over:
                pass  # It is counted, and said.
            say(f"containers used {found.cpu_s():.0f} s of CPU")
    except (NoEngine, NotFetched) as error:
        tally.skipped.append(missing_piece(PIECE, str(error), HOW_TO_ENABLE))
    except AssertionError as error:  # Of the engine's end: what it left.
        say(str(error))
        tally.failed += 1
    return tally


class _Run:
    def __init__(self, found: Engine, tally: Tally, say: Say, *, is_alone: bool) -> None:
        self._engine = found
        self._tally = tally
        self._say = say
        self._is_alone = is_alone
        with self._step("build images"):
            self._cluster = Cluster(found, images.build(found))
            if found.is_own:
                size, base = (_bytes_of(found, each) for each in (self._cluster.image, images.BASE))
                assert size - base <= IMAGE_BYTES_MAX, f"{size - base:,} bytes over its base"
        self._traffic: Traffic | None = None

    def short(self) -> None:
        with self._cleaned():
            self._start()
            self._kill_each("bookie-2", "log")
            with self._step("kill ZooKeeper's leader"):
                self._kill(self._cluster.zookeeper_leader())
            self._cut_each("bookie-3")
            self._end()

    def all(self) -> None:
        cluster = self._cluster
        with self._cleaned():
            self._start()
            services = cluster.compose("config", "--services").split()
            names = sorted(each for each in services if each != "init")
            self._kill_each(*names)
            with self._step("kill ZooKeeper's leader"):
                self._kill(cluster.zookeeper_leader())
            self._cut_each(*names)
            for count in (4, 1, 2):
                with self._step(f"{count} log servers"):
                    cluster.up("--scale", f"log={count}", "--no-recreate")
                    assert len(cluster.containers("log")) == count
                    self._flows()
            with self._step("an image of another version"):
                self._replace_all(names)
            with self._step(f"no ZooKeeper for {_OUTAGE_S:g} s"):
                nodes = [f"zookeeper-{number}" for number in (1, 2, 3)]
                cluster.compose("stop", *nodes)
                time.sleep(_OUTAGE_S)
                cluster.up(timeout_s=200)
                self._flows()
            self._end()

    def _start(self) -> None:
        cluster = self._cluster
        with self._step("up"):
            took_s = cluster.up()
            limit_s = HEALTHY_WITHIN_S if self._is_alone else SHARED_WITHIN_S
            assert took_s <= limit_s, f"healthy after {took_s:.0f} s"
        with self._step("user and file system"):
            self._check_confinement()
        with self._step("a second up"):
            before = cluster.containers()
            cluster.up()
            assert cluster.containers() == before
        with self._step("HTTP at the published port"):
            url = f"http://127.0.0.1:{cluster.http_port}/v1/namespaces/default/logs"
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.status == 200
        with self._step("traffic"):
            self._traffic = Traffic(cluster)
            self._flows()

    def _end(self) -> None:
        cluster, traffic = self._cluster, self._traffic
        assert traffic
        with self._step("every record once, in order"):
            count = traffic.end()
            self._say(f"{count:,} records; {traffic.retries} times the program asked again")
        with self._step("down"):
            took_s = cluster.down()
            assert took_s <= DOWN_WITHIN_S, f"down after {took_s:.0f} s"
        with self._step("up again, with all records"):
            cluster.up()
            self._traffic = Traffic(cluster, offset=count)
            self._flows()
            self._traffic.end()
        with self._step("down --volumes leaves nothing"):
            cluster.down("--volumes")
            label = f"label=com.docker.compose.project={cluster.project}"
            for kind in ("container", "network", "volume"):
                every = ("--all",) if kind == "container" else ()
                left = self._engine.docker(kind, "ls", "--quiet", *every, "--filter", label)
                assert not left, f"{kind}: {left}"

    def _kill_each(self, *services: str) -> None:
        for service in services:
            with self._step(f"kill {service}"):
                self._kill(self._cluster.containers(service)[0])

    def _kill(self, container: str) -> None:
        self._cluster.kill(container)
        self._flows()
        self._cluster.await_healthy(container)

    def _cut_each(self, *services: str) -> None:
        for service in services:
            with self._step(f"disconnect {service}"):
                container = self._cluster.containers(service)[0]
                with self._cluster.disconnected(container):
                    time.sleep(_CUT_S)
                self._flows()
                self._cluster.await_healthy(container)

    def _replace_all(self, services: list[str]) -> None:
        """One service after the other, as docs/deploy.md has it: bookies first, then log servers."""
        cluster = self._cluster
        newer = f"{cluster.image}:next"
        steps = f"FROM {cluster.image}\nLABEL org.opencontainers.image.version=next\n"
        self._engine.docker("build", "--quiet", f"--tag={newer}", "-", text=steps)
        for service in services:
            if not service.startswith("zookeeper"):
                cluster.up("--no-deps", service, image=newer)
                for name in cluster.containers(service):
                    assert self._engine.inspect(name, "{{.Config.Image}}") == newer
                self._flows()
        cluster.use_image(newer)

    def _check_confinement(self) -> None:
        cluster = self._cluster
        for name in cluster.containers():
            if not any(f"-{each}-" in name for each in _ROLLBOOK):
                continue
            found = json.loads(self._engine.inspect(name, "{{json .}}"))
            assert found["Config"]["User"] == _USER, name
            assert found["HostConfig"]["ReadonlyRootfs"], name
            status = self._engine.docker("exec", name, "cat", "/proc/1/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert fields["Uid"].split() == ["10001"] * 4, name
            assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0, name
            with contextlib.suppress(CommandFailed):
                self._engine.docker("exec", name, "touch", "/opt/rollbook/written")
                raise AssertionError(f"{name} can write to its root")

    def _flows(self) -> None:
        assert self._traffic
        self._traffic.flows()

    @contextlib.contextmanager
    def _step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except (AssertionError, CommandFailed, OSError) as error:
            self._tally.failed += 1
            self._say(f"{what}: FAILED: {error}")
            raise _Over from error
        self._tally.passed += 1
        self._say(f"{what}: {time.monotonic() - started:.1f} s")

    @contextlib.contextmanager
    def _cleaned(self) -> Iterator[None]:
        """After a failure, too; a step that fails ends the run."""
        try:
            yield
        except _Over:
            self._say(self._cluster.logs())
        finally:
            if self._traffic:
                self._traffic.stop()
            with contextlib.suppress(CommandFailed):
                self._cluster.down("--volumes")


def _bytes_of(found: Engine, image: str) -> int:
    return int(found.docker("image", "inspect", "--format", "{{.Size}}", image))


class _Over(Exception):
    """A step failed, and said so."""

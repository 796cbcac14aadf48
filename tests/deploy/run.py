"""`python -m tests deploy`: the cluster of docs/deploy.md under common failures."""

import contextlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.deploy import encrypted, engine, images, machine
from tests.deploy.chart import installed
from tests.deploy.cluster import Cluster, Traffic
from tests.deploy.engine import CommandFailed, Engine, NoEngine
from tests.deploy.images import NotFetched
from tests.deploy.monitoring import Monitoring
from tests.tally import Tally, missing_piece

PIECE: Final = "docker"
HOW_TO_ENABLE: Final = (
    "apt-get install --no-install-recommends docker.io mmdebstrap, and once a way to Debian's archive and PyPI, "
    "as root; or a Docker engine that runs and can pull images"
)
HEALTHY_WITHIN_S: Final = 90.0
SHARED_WITHIN_S: Final = 180.0  # Used while other kinds of tests run, too.
DOWN_WITHIN_S: Final = 15.0
IMAGE_BYTES_MAX: Final = 80_000_000  # In addition to its base.
_USER: Final = "10001:10001"
_ROLLBOOK: Final = ("bookie", "log", "recovery")
_OUTAGE_S: Final = 30.0  # Longer than any session of ZooKeeper.
_CUT_S: Final = 4.0

PARTS: Final = ("failures", "monitoring", "tls", "chart", "systemd")

Say = Callable[[str], None]


def prepare(say: Say) -> Tally:
    """Downloads what a run needs, and checks that the engine can run a container."""
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


def run(say: Say, parts: Sequence[str], *, downloads: bool = True) -> Tally:
    """`parts` are keys of `PARTS`. If it is empty, the short form runs."""
    tally = Tally("steps")
    try:
        with engine.running() as found:
            images.prepare(found, downloads=downloads)
            try:
                one = _Run(found, tally, say, is_alone=bool(parts), downloads=downloads)
                for part in parts:
                    _run_part(one, part, tally, say)
                if not parts:
                    one.short()
            except _Over:
                pass  # The failure is counted and printed already.
            say(f"containers used {found.cpu_s():.0f} s of CPU")
    except (NoEngine, NotFetched) as error:
        tally.skipped.append(missing_piece(PIECE, str(error), HOW_TO_ENABLE))
    except AssertionError as error:  # The engine left something behind.
        say(str(error))
        tally.failed += 1
    return tally


def _run_part(one: "_Run", part: str, tally: Tally, say: Say) -> None:
    started = time.monotonic()
    try:
        getattr(one, part)()
    except NotFetched as error:  # The other parts can run without it.
        tally.skipped.append(missing_piece(PIECE, f"{part}: {error}", HOW_TO_ENABLE))
    else:
        say(f"part {part}: {time.monotonic() - started:.0f} s")


class _Run:
    def __init__(
        self, found: Engine, tally: Tally, say: Say, *, is_alone: bool, downloads: bool
    ) -> None:
        self._engine = found
        self._tally = tally
        self._say = say
        self._is_alone = is_alone
        self._downloads = downloads
        with self._step("build images"):
            self._built = images.build(found)
            self._cluster = Cluster(found, self._built)
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

    def monitoring(self) -> None:
        with self._cleaned():
            with self._step("up"):
                images.build_prometheus(self._engine)
                self._cluster.up()
                self._traffic = Traffic(self._cluster)
                self._flows()
            with encrypted.outside(self._cluster) as outside:
                self._use_from_outside(outside)
            with self._step("Prometheus scrapes all servers"):
                prometheus = Monitoring(self._cluster)
                prometheus.await_targets()
                self._flows()
            with self._step("each panel's query is answered"):
                count, values = prometheus.require_panels()
                self._say(f"{count} queries, {values} of them with a value")
            with self._step("no alert fires"):
                prometheus.await_alerts()
            with self._step("alerts fire while a bookie is away"):
                self._cluster.compose("stop", "bookie-2")
                prometheus.await_alerts(
                    ("RollbookTargetDown", "bookie-2:8001"), ("RollbookFewWritableBookies", "")
                )
                self._flows()
            with self._step("the example, whose writer is killed"):
                self._cluster.run_example()
            with self._step("alerts end when the bookie is back"):
                self._cluster.compose("start", "bookie-2")
                prometheus.await_alerts()
            with self._step("every record once, in order"):
                self._traffic.end()

    def tls(self) -> None:
        self._cluster = cluster = Cluster(
            self._engine, self._built, "rollbook-tls", files=encrypted.FILES
        )
        with self._cleaned():
            with self._step("up, with TLS"):
                cluster.up()
            with encrypted.outside(cluster) as outside:
                self._encrypted(cluster, outside)
            with self._step("every record once, in order"):
                assert self._traffic
                self._traffic.end()

    def _encrypted(self, cluster: Cluster, outside: encrypted.Outside) -> None:
        with encrypted.eavesdropping(cluster):
            with self._step("traffic"):
                self._traffic = Traffic(cluster)
                self._flows()
            self._use_from_outside(outside)
            with self._step("strangers are refused"):
                outside.require_refused_without()
            with self._step("commands of docs/deploy.md"):
                outside.run_commands()
            with self._step("kill bookie-1"):
                self._kill(cluster.containers("bookie-1")[0])
            with self._step("all certificates are replaced"):
                encrypted.replace_all_certificates(cluster)
                self._flows()
            with self._step("the host goes on with the new authority"):
                outside.require_old_authority_is_refused()
                outside.fetch_authorities()
                outside.append_and_read()
                outside.append_and_read_with_curl()
            with self._step("kill log, which shows what is new"):
                self._kill(cluster.containers("log")[0])
                outside.append_and_read()
            with self._step("the example, whose writer is killed"):
                cluster.run_example()
            with self._step("Prometheus scrapes all servers, with its token"):
                images.build_prometheus(self._engine)
                prometheus = Monitoring(cluster)
                prometheus.await_targets()
                prometheus.require_panels()
        self._say("a capture on all interfaces: no record, no token")

    def chart(self) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="rb-chart-") as folder,
            installed(self._engine, self._built, Path(folder)) as release,
            suppress(_Over),
        ):
            try:
                with self._step("start all pods of the chart"):
                    release.start()
                with self._step("probes pass, and the job ends well"):
                    release.await_ready()
                with self._step("users, rights and file systems of pods"):
                    release.require_confined()
                with self._step("an append and a read by the service's name"):
                    release.append_and_read()
                    release.require_live()
                with self._step("SIGTERM ends each pod within its grace"):
                    took = release.stop()
                    self._say(", ".join(f"{name} {took[name]:.1f} s" for name in sorted(took)))
            except _Over:
                self._say(release.logs())
                raise

    def systemd(self) -> None:
        with machine.installed(self._engine, self._built) as one, suppress(_Over):
            with self._step("download Debian 12"):
                images.prepare_machine(self._engine, downloads=self._downloads)
            with self._step("install the units as docs/deploy.md does"):
                one.build()
            try:
                self._use_units(one)
            except _Over:
                self._say(one.logs())
                raise

    def _use_units(self, one: machine.Machine) -> None:
        with self._step("systemd 252 starts the machine"):
            one.boot()
        with self._step("without a cluster no start ends"):
            one.require_start_waits()
        with self._step("the page's commands start all units"):
            one.start_as_the_page_does()
        with self._step("users, rights and file systems of units"):
            one.require_confined()
        with self._step("a log takes a record"):
            one.make_log()
            one.append("first")
        for unit in machine.UNITS:
            with self._step(f"kill rollbook-{unit}"):
                one.kill(unit)
                one.append(f"after {unit}")
        with self._step("the bookie goes on when its disk is full"):
            one.fill_disk()
        with self._step("the bookie starts on its full disk"):
            one.require_start_on_full_disk()
        with self._step("with room it takes records"):
            one.make_room()
            one.append("with room")
        with self._step("systemctl stop ends each unit in its time"):
            took = {unit: one.stop(unit) for unit in reversed(machine.UNITS)}
            self._say(", ".join(f"{unit} {took[unit]:.1f} s" for unit in took))
        with self._step("all records are there after systemctl start"):
            one.start()
            wanted = ["first", *(f"after {unit}" for unit in machine.UNITS), "with room"]
            assert one.read() == wanted, one.read()
        with self._step("the machine is shut down"):
            one.shut_down()

    def _use_from_outside(self, outside: encrypted.Outside) -> None:
        with self._step("Python on the host, by one port"):
            assert outside.append_and_read() == 2, "one log server owns all logs"
        with self._step("curl on the host, by one port"):
            outside.append_and_read_with_curl()

    def failures(self) -> None:
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
        with self._step("up again"):
            cluster.up()
        with self._step("all records are there"):
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
        """Replaces one service after the other as in docs/deploy.md: bookies, then log servers."""
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
        """Cleans up, also after a failure. A step that fails ends the run."""
        try:
            yield
        except _Over:
            self._say(self._cluster.logs())
        finally:
            if self._traffic:
                self._traffic.stop()
            try:
                self._cluster.down("--volumes")
            except CommandFailed as error:  # Its network and an interface are left.
                self._say(f"what was started is not removed: {error}")
                self._tally.failed += 1


def _bytes_of(found: Engine, image: str) -> int:
    return int(found.docker("image", "inspect", "--format", "{{.Size}}", image))


class _Over(Exception):
    """A step failed and has printed its error."""

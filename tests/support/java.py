"""Java programs for tests: a folder with a `pom.xml`, built by Maven, run as `java @options CLASS`.

Maven runs once: its results stay in the folder's `target` until the sources change or a jar is
missing in Maven's store.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PIECE: Final = "java"
JAVA_RELEASE_MIN: Final = 17

_ATTEMPTS: Final = 3  # A registry may fail for a moment.
_BUILD_TIMEOUT_S: Final = 300


class NoJava(Exception):
    """JDK, Maven or access to Maven Central is missing; the message says which."""


class JavaProject:
    def __init__(
        self,
        folder: Path,
        jvm_options: Sequence[str],
        downloads_mb: int,
        protos: Sequence[Path] = (),
    ) -> None:
        self._folder = folder
        self._target = folder / "target"
        self._stamp = self._target / "built-from"
        self._options_file = self._target / "jvm-options"  # Shortens commands by 8 KB.
        self._jvm_options, self._protos = jvm_options, protos
        self._is_built = False
        self.how_to_enable = (
            "apt-get install --no-install-recommends maven openjdk-17-jdk-headless, and once a way "
            f"to Maven Central, for {downloads_mb} MB"
        )

    def command(
        self, main_class: str, *arguments: str | Path, options: Sequence[str] = ()
    ) -> list[str]:
        """The command for a class of the project or of its jars; `options` are for the JVM."""
        self.ensure_built()
        return [_java(), f"@{self._options_file}", *options, main_class, *map(str, arguments)]

    def ensure_built(self) -> None:
        """Raises `NoJava`."""
        if self._is_built:
            return
        _check_tools()
        sources = self._digest()
        if not (
            self._stamp.exists()
            and self._stamp.read_text() == sources
            and _is_complete(self._class_path())
        ):
            self._build()
            self._stamp.write_text(sources)
        self._options_file.write_text("\n".join((*self._jvm_options, "-cp", self._class_path())))
        self._is_built = True

    def _build(self) -> None:
        shutil.rmtree(self._target, ignore_errors=True)
        for _ in range(_ATTEMPTS):
            done = subprocess.run(
                ["mvn", "--batch-mode", "--quiet", "-Dstyle.color=never", "compile"],
                cwd=self._folder,
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

    def _digest(self) -> str:
        digest = hashlib.sha256()
        sources = *sorted(self._folder.glob("src/**/*.java")), *self._protos
        for path in (self._folder / "pom.xml", *sources):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def _class_path(self) -> str:
        jars = self._target / "class-path"
        return f"{self._target}/classes:{jars.read_text().strip()}" if jars.exists() else ""


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


def _is_complete(path: str) -> bool:
    return bool(path) and all(os.path.exists(part) for part in path.split(":"))

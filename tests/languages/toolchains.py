"""Builds `examples/go`, `examples/java` and `examples/node` with the tools of their languages.

The result of a build is kept next to the example until its sources or the protos change.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.java import JavaProject, NoJava

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PROTOS: Final = EXAMPLES / "protos"
NODE_TOOLS: Final = EXAMPLES / "node" / "node_modules" / ".bin"
_ATTEMPTS: Final = 2  # A registry may fail for a moment.
_BUILD_TIMEOUT_S: Final = 420


class Missing(Exception):
    """A tool is not installed, or its registry cannot be reached; the message says which."""


@dataclass(frozen=True, slots=True)
class Language:
    """`build` returns the command of the example. It raises `Missing`."""

    name: str
    build: Callable[[], Sequence[str | Path]]
    how_to_enable: str


def _go() -> Sequence[str | Path]:
    folder = EXAMPLES / "go"
    for tool in ("go", "protoc"):
        _require(tool)
    if not Path("/usr/include/google/protobuf/any.proto").exists() and not _is_beside("protoc"):
        raise Missing("no google/protobuf/any.proto")
    binaries = folder / "bin"
    environment = {"GOBIN": str(binaries), "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}

    def build() -> None:
        _install(folder, ["go", "mod", "download"])
        for command in ("install tool", "generate", "build -o bin/example ."):
            done = _run(folder, ["go", *command.split()], environment)
            assert done.returncode == 0, done.stdout

    _once(build, binaries / "built-from", [*folder.glob("*.go"), *folder.glob("go.*")])
    return [binaries / "example"]


def _java() -> Sequence[str | Path]:
    options = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    project = JavaProject(EXAMPLES / "java", options, downloads_mb=40, protos=_protos())
    try:
        return project.command("Example")
    except NoJava as error:
        raise Missing(str(error)) from None


def _node() -> Sequence[str | Path]:
    folder = EXAMPLES / "node"
    for tool in ("node", "npm"):
        _require(tool)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    built = folder / "node_modules" / "built-from"
    _once(lambda: _install(folder, install), built, [folder / "package-lock.json"])
    return ["node", folder / "main.js"]


LANGUAGES: Final = (
    Language(
        "go",
        _go,
        "Go 1.26, apt-get install protobuf-compiler libprotobuf-dev, and once a way to Go modules",
    ),
    Language(
        "java",
        _java,
        "apt-get install maven openjdk-17-jdk-headless, and once a way to Maven Central",
    ),
    Language("node", _node, "Node.js 20 with npm, and once a way to npm packages"),
)


def _require(tool: str) -> None:
    if not shutil.which(tool):
        raise Missing(f"no `{tool}`")


def _is_beside(tool: str) -> bool:
    """Whether the tool includes the protos of Google's types, like released archives."""
    include = Path(shutil.which(tool) or "").resolve().parents[1] / "include"
    return (include / "google/protobuf/any.proto").exists()


def _protos() -> list[Path]:
    return sorted((PROTOS / "rollbook/proto/v1").glob("*.proto"))


def _once(build: Callable[[], None], stamp: Path, sources: Sequence[Path]) -> None:
    digest = hashlib.sha256()
    for path in (*sorted(sources), *_protos()):
        digest.update(path.read_bytes())
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    build()
    stamp.write_text(digest.hexdigest())


def _install(folder: Path, command: Sequence[str]) -> None:
    for _ in range(_ATTEMPTS):
        done = _run(folder, command)
        if done.returncode == 0:
            return
    raise Missing(f"{' '.join(command)} failed: {done.stdout.strip()[-2000:]}")


def _run(
    folder: Path, command: Sequence[str], environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )

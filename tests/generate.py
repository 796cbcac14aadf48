"""Writes the Python of every `*.proto` in `FOLDERS`, beside it: `python -m tests.generate [--check]`.

The generator runs in an environment of its own, made by uv or, where there is none, by venv and
pip: its pins (code of an old enough generation to load on every protobuf that we allow) must not
enter ours. `--check` writes nothing and fails if the committed code is not what the schemas give.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from typing import Final

GENERATOR: Final = ("grpcio-tools==1.80.0", "mypy-protobuf==5.1.0")
PYTHON_OF_GENERATOR: Final = "3.11"

REPOSITORY: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS: Final = ("proto/wire/schema", "proto/v1", "logservice/schema")
ROOT: Final = "rollbook"  # As what they are imported; generated so.


class CannotGenerate(Exception):
    """Something is missing on this machine; the text says what, and what to do about it."""


def schemas() -> list[str]:
    """Paths below the repository, and below the import root."""
    return [name for name in _names() if name.endswith(".proto")]


def generated_names() -> list[str]:
    """What a run writes, and all it may write."""
    stems = [name.removesuffix(".proto") for name in schemas()]
    return [f"{stem}_pb2{ending}" for stem in stems for ending in (".py", ".pyi")]


def generate(into: str) -> None:
    """Leaves `rollbook/…/*_pb2.py` and `.pyi` in the folder `into`."""
    with tempfile.TemporaryDirectory(prefix="rollbook-generator-") as scratch:
        python = _generator_python(scratch)
        packages = sorted({folder.partition("/")[0] for folder in FOLDERS})
        command = [*python, "-m", "grpc_tools.protoc"]
        command += [f"-I{ROOT}/{package}={package}" for package in packages]
        command += [f"--python_out={into}", f"--mypy_out={into}"]
        command += [f"{ROOT}/{name}" for name in schemas()]
        # protoc finds the stub writer on the PATH, beside the generator's python.
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotGenerate(f"the generator failed:\n{done.stdout}{done.stderr}")


def _names() -> list[str]:
    return [
        f"{folder}/{name}"
        for folder in FOLDERS
        if os.path.isdir(os.path.join(REPOSITORY, folder))
        for name in sorted(os.listdir(os.path.join(REPOSITORY, folder)))
    ]


def _generator_python(scratch: str) -> list[str]:
    if shutil.which("uv"):
        withs = [part for pin in GENERATOR for part in ("--with", pin)]
        return [
            "uv",
            "run",
            "--quiet",
            "--isolated",
            "--no-project",
            "--python",
            PYTHON_OF_GENERATOR,
            *withs,
            "python",
        ]
    try:
        venv.create(scratch, with_pip=True)
    except subprocess.CalledProcessError as error:
        raise CannotGenerate(
            "uv is not installed and venv cannot make an environment with pip (on Debian that "
            f"takes the package python3-venv): {error}; install either"
        ) from error
    binaries = os.path.join(scratch, "bin")
    done = subprocess.run(
        [os.path.join(binaries, "python"), "-m", "pip", "install", "--quiet", *GENERATOR],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CannotGenerate(
            f"pip cannot install {', '.join(GENERATOR)}; a package index must be reachable "
            f"once:\n{done.stderr}"
        )
    return ["env", f"PATH={binaries}{os.pathsep}{os.environ.get('PATH', '')}", "python"]


def stale() -> list[str]:
    """The committed files that are not what the schemas give."""
    with tempfile.TemporaryDirectory(prefix="rollbook-generated-") as fresh:
        generate(fresh)
        return [
            name
            for name in generated_names()
            if _content(os.path.join(REPOSITORY, name)) != _content(os.path.join(fresh, ROOT, name))
        ] + _left_over()


def _left_over() -> list[str]:
    """Generated code whose schema is gone."""
    known = generated_names()
    return [n for n in _names() if n.endswith(("_pb2.py", "_pb2.pyi")) and n not in known]


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    check = parser.parse_args(arguments).check
    try:
        if check:
            names = stale()
            for name in names:
                _say(f"stale: {name}; run: python -m tests.generate")
            _say(f"generated code: {len(generated_names())} files, {len(names)} stale")
            return 1 if names else 0
        with tempfile.TemporaryDirectory(prefix="rollbook-generated-") as fresh:
            generate(fresh)
            for name in generated_names():
                shutil.copyfile(os.path.join(fresh, ROOT, name), os.path.join(REPOSITORY, name))
        for name in _left_over():
            os.unlink(os.path.join(REPOSITORY, name))
    except CannotGenerate as error:
        _say(f"cannot generate: {error}")
        return 2
    _say(f"generated code: {len(generated_names())} files written")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Writes the Python of every `*.proto` in `FOLDERS`, beside it: `python -m tests.generate [--check]`.

The generator runs in a separate environment, made by uv or else by venv and pip, because its pins
must not enter ours: they are old enough that the code loads on every protobuf version that we
allow. `--check` writes nothing and fails if the committed code differs from the generated code.
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
ROOT: Final = "rollbook"  # The package name of the generated imports.


class CannotGenerate(Exception):
    """Something is missing on this machine; the message names it and the remedy."""


def schemas() -> list[str]:
    """The schemas' paths below the import root."""
    return [name for name in _names() if name.endswith(".proto")]


def generated_names() -> list[str]:
    """The files that a run writes; it may write no others."""
    stems = [name.removesuffix(".proto") for name in schemas()]
    return [f"{stem}_pb2{ending}" for stem in stems for ending in (".py", ".pyi")]


def generate(into: str) -> None:
    """Writes `rollbook/…/*_pb2.py` and `.pyi` to the folder `into`."""
    with tempfile.TemporaryDirectory(prefix="rollbook-generator-") as scratch:
        python = _generator_python(scratch)
        packages = sorted({folder.partition("/")[0] for folder in FOLDERS})
        command = [*python, "-m", "grpc_tools.protoc"]
        command += [f"-I{ROOT}/{package}={package}" for package in packages]
        command += [f"--python_out={into}", f"--mypy_out={into}"]
        command += [f"{ROOT}/{name}" for name in schemas()]
        # protoc finds the stub writer on the PATH, next to the generator's python.
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
    """The committed files that differ from the generated ones."""
    with tempfile.TemporaryDirectory(prefix="rollbook-generated-") as fresh:
        generate(fresh)
        return [
            name
            for name in generated_names()
            if _content(os.path.join(REPOSITORY, name)) != _content(os.path.join(fresh, ROOT, name))
        ] + _left_over()


def _left_over() -> list[str]:
    """Generated files whose schema no longer exists."""
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

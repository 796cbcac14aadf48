"""The folder of an archive: writes files into it, and publishes them by manifests.

    PATH/_archive.json                                     the archive's id
    PATH/_lock                                             locked by the only running export
    PATH/_manifests/ns%2Flog/00000000000000000000.json     one for each step, named by its first offset
    PATH/_steps/                                           unfinished steps: intents, and files that are being written
    PATH/log=ns%2Flog/date=2026-01-31/FIRST-NEXT-ID.parquet

A step has three parts, and an export may be killed during each of them. First the step's files are written and
synced under `_steps`, which no reader uses. Then an intent that names all of them is written. Finally the files are
moved to their places, and a hard link makes the manifest visible; it fails if the manifest exists already. The next
export completes the steps whose intents it finds (SA4), and deletes the other files under `_steps`. The driver
and all executors must see the folder at the same path.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote, unquote

from rollbook.api.spark.core.archive_manifests import Chain, Manifest, chain_of
from rollbook.proto.errors import (
    ArchiveDamaged,
    ArchiveHeld,
    ArchiveUnwritable,
    BadConfig,
    NoSuchArchive,
    RollbookError,
    UnsupportedVersion,
)

_ABOUT: Final = "_archive.json"
_LOCK: Final = "_lock"
_MANIFESTS: Final = "_manifests"
STEPS: Final = "_steps"
_INTENT: Final = ".intent"
_VERSION: Final = 1
_FOLDER: Final = "log="
_NAME_BYTES_MAX: Final = 255


class Archive:
    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    # --- Reading ------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Raises `NoSuchArchive`."""
        try:
            with open(self._at(_ABOUT), encoding="utf-8") as file:
                return str(json.load(file)["id"])
        except (OSError, ValueError, KeyError, TypeError):
            raise NoSuchArchive(
                f"there is no archive in {self.path}",
                next_step="name the folder that rollbook spark export wrote",
            ) from None

    def logs(self) -> list[str]:
        try:
            return sorted(map(unquote, os.listdir(self._at(_MANIFESTS))))
        except FileNotFoundError:
            return []

    def manifests(
        self, log: str, on_damaged: Callable[[str, RollbookError], None] | None = None
    ) -> list[Manifest]:
        """Reads manifests. If `on_damaged` is given, it is called with the name of each unreadable manifest
        and the reason, and the other manifests are returned. Otherwise raises `ArchiveDamaged`,
        `UnsupportedVersion`.
        """
        folder = self._at(_MANIFESTS, _quoted(log))
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            if name.endswith(".json"):
                where = os.path.join(folder, name)
                with open(where, "rb") as file:
                    data = file.read()
                try:
                    found.append(Manifest.unpack(data, where))
                except (ArchiveDamaged, UnsupportedVersion) as error:
                    if on_damaged is None:
                        raise
                    on_damaged(name, error)
        return found

    def chain(self, log: str) -> Chain | None:
        """Raises `ArchiveDamaged`."""
        return chain_of(log, self.manifests(log))

    def chains(self, covers: Callable[[str], bool]) -> dict[str, Chain]:
        """Raises `NoSuchArchive`, `ArchiveDamaged`."""
        assert self.id
        chains = {log: self.chain(log) for log in self.logs() if covers(log)}
        return {log: chain for log, chain in chains.items() if chain is not None}

    # --- Writing ------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Locks the archive, and creates it if needed. Raises `ArchiveHeld`, `ArchiveUnwritable`."""
        with unwritable():
            os.makedirs(self._at(STEPS), exist_ok=True)
            lock = open(self._at(_LOCK), "ab")  # noqa: SIM115
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveHeld(
                    f"another export writes to {self.path}", next_step="wait until that export ends"
                ) from None
            with unwritable():
                if not os.path.exists(self._at(_ABOUT)):
                    about = {"v": _VERSION, "id": os.urandom(8).hex()}
                    self._write(_ABOUT, json.dumps(about).encode())
            yield

    def complete(self) -> list[Manifest]:
        """Completes unfinished steps whose files were all written, and deletes the files of other unfinished
        steps (SA4). It also deletes the files of a step whose records were archived first by another export,
        on a machine that did not see this lock.
        """
        found = []
        with unwritable():
            for name in sorted(os.listdir(self._at(STEPS))):
                where = self._at(STEPS, name)
                if name.endswith(_INTENT):
                    with open(where, "rb") as file:
                        said = json.load(file)
                    manifest = Manifest.unpack(said["manifest"].encode(), where)
                    try:
                        self._publish(where, manifest, said["moves"])
                    except ArchiveHeld:
                        self._drop_moved(manifest.log, said["moves"])
                    else:
                        found.append(manifest)
            for name in os.listdir(self._at(STEPS)):
                shutil.rmtree(self._at(STEPS, name), ignore_errors=True)
                if os.path.isfile(self._at(STEPS, name)):
                    os.unlink(self._at(STEPS, name))
        return found

    def _drop_moved(self, log: str, moves: Mapping[str, str]) -> None:
        """Deletes files that were moved to their places but are named by no manifest."""
        named = {file.path: None for each in self.manifests(log) for file in each.files}
        for target in moves.values():
            if target not in named:
                with suppress(FileNotFoundError):
                    os.unlink(self._at(target))

    def publish(self, manifest: Manifest, moves: Mapping[str, str]) -> None:
        """Publishes a manifest, which is valid when this returns. `moves` maps the present path of each
        file to its path in the manifest.

        Raises `ArchiveHeld`, `ArchiveUnwritable`.
        """
        with unwritable():
            short = hashlib.sha256(manifest.log.encode()).hexdigest()[:32]
            name = f"{short}@{manifest.name}{_INTENT}"
            intent = {"manifest": manifest.pack().decode(), "moves": dict(moves)}
            self._write(os.path.join(STEPS, name), json.dumps(intent).encode())
            self._publish(self._at(STEPS, name), manifest, moves)

    def _publish(self, intent: str, manifest: Manifest, moves: Mapping[str, str]) -> None:
        folders: dict[str, None] = {}
        for source, target in moves.items():
            folder = os.path.dirname(self._at(target))
            os.makedirs(folder, exist_ok=True)
            if os.path.exists(self._at(source)):
                os.rename(self._at(source), self._at(target))
            elif not os.path.exists(self._at(target)):
                raise ArchiveDamaged(
                    f"{self._at(target)} is missing, although a killed export wrote it",
                    next_step=f"to export these records again, delete {intent}",
                )
            folders[folder] = folders[os.path.dirname(folder)] = None
        for folder in (*folders, self.path):
            _sync_folder(folder)
        place = os.path.join(_MANIFESTS, _quoted(manifest.log))
        os.makedirs(self._at(place), exist_ok=True)
        temporary = f"{intent}.manifest"
        with open(temporary, "wb") as file:
            file.write(manifest.pack())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, self._at(place, manifest.name))
        except FileExistsError:
            with open(self._at(place, manifest.name), "rb") as file:
                if file.read() != manifest.pack():
                    raise ArchiveHeld(
                        f"another export has archived {manifest.log} from {manifest.first} on",
                        next_step="make sure that only one export at a time writes to this archive",
                    ) from None
        for folder in (self._at(place), self._at(_MANIFESTS), self.path):
            _sync_folder(folder)
        os.unlink(temporary)
        os.unlink(intent)

    def _write(self, name: str, data: bytes) -> None:
        """Writes a file completely or not at all."""
        temporary = self._at(f"{name}.new")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._at(name))
        _sync_folder(os.path.dirname(self._at(name)))

    def _at(self, *names: str) -> str:
        return os.path.join(self.path, *names)


def _quoted(log: str) -> str:
    return quote(log, safe="")


def require_name(log: str) -> None:
    """Raises `BadConfig` if the name of the folder would be longer than file systems allow."""
    if len(_FOLDER) + len(_quoted(log)) > _NAME_BYTES_MAX:
        raise BadConfig(
            f"{log} cannot be archived: its folder would have a name of"
            f" {len(_FOLDER) + len(_quoted(log))} bytes, more than the {_NAME_BYTES_MAX} that are possible",
            next_step="name only the other logs",
        )


def place_of(log: str, day: str, first: int, end: int, piece: int) -> str:
    """Returns the path of a file relative to the archive's folder."""
    return f"{_FOLDER}{_quoted(log)}/date={day}/{first:020}-{end:020}-{piece:016x}.parquet"


def drop_folder(path: str) -> None:
    """Deletes the folder of a finished step; if that fails, the next export deletes it."""
    shutil.rmtree(path, ignore_errors=True)


def sizes_in(archive: Archive, paths: Iterable[str]) -> dict[str, int]:
    """Returns the sizes of the files that exist, by path."""
    found = {}
    for path in paths:
        try:
            found[path] = os.stat(os.path.join(archive.path, path)).st_size
        except OSError:
            continue
    return found


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def unwritable(what: str = "the archive") -> Iterator[None]:
    """Turns each `OSError` into `ArchiveUnwritable`, which names the file."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ArchiveUnwritable(
            f"{what} cannot be written: {error.strerror or error}{where}",
            next_step="make room, or fix the permissions of the folder, and run it again: this step had no effect",
        ) from error

"""A bookie's settings, and what it runs on: what commands about one load once they are called."""

import asyncio
import os
import random
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import structlog

from rollbook.bookie.bookie import Settings, addresses_of
from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.bookie.core.remedies import FORMAT, INIT, REJOIN, WRITE_OFF
from rollbook.bookie.identity import Identity
from rollbook.bookie.properties import parse_properties, translate
from rollbook.proto.cluster.cluster import open_cluster
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Clock, Disk, MetadataStore, Randomness, Transport
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.config import (
    PREFIX,
    load_config,
    read_config_file,
    read_config_text,
)
from rollbook.proto.runtime.disk import SystemDisk
from rollbook.proto.runtime.logs import configure_logs
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport, address_of_this_host

logger = structlog.get_logger()

C = TypeVar("C")
T = TypeVar("T")

_SECTIONS: Final = ("bookie", "storage", "server", "space")


def load_settings(config_file: str | None = None, **flags: Any) -> Settings:
    """Defaults < file < environment < flags; a flag FOO-BAR is ROLLBOOK_FOO_BAR in the environment
    and foo_bar under [bookie] in the file. Raises `BadConfig`.
    """
    tables = read_bookie_config(config_file) if config_file else {}
    directories = {
        name: tuple(flags.pop(name, ()) or _listed_in_environ(name))
        for name in ("journal_dir", "ledger_dir")
    }
    if len(directories["journal_dir"]) > 1:
        raise BadConfig("a bookie has one journal directory")
    storage_flags = {
        "journal_dir": next(iter(directories["journal_dir"]), None),
        "ledger_dirs": directories["ledger_dir"] or None,
    }
    storage = _load(StorageConfig, "storage", tables, os.environ, storage_flags)
    return Settings(
        _load(BookieConfig, "bookie", tables, _environ_of_flags(BookieConfig), flags),
        replace(
            storage,
            journal_dir=os.path.abspath(storage.journal_dir),
            ledger_dirs=tuple(map(os.path.abspath, storage.ledger_dirs)),
        ).with_fitting_queue(),
        _load(ServerConfig, "server", tables, os.environ, {}),
        _load(SpaceConfig, "space", tables, os.environ, {}),
    )


def read_bookie_config(path: str) -> dict[str, dict[str, Any]]:
    """TOML if its name says so, else Java's properties."""
    if path.endswith(".toml"):
        return read_config_file(path, _SECTIONS)
    translated = translate(parse_properties(read_config_text(path)), address_of_this_host)
    if translated.ignored:
        logger.info("config_keys_ignored", path=path, keys=translated.ignored)
    return translated.tables


def _load(
    shape: type[C],
    section: str,
    tables: Mapping[str, Mapping[str, Any]],
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> C:
    given = {name: value for name, value in flags.items() if value is not False}
    return load_config(
        shape, section=section, file=tables.get(section), environ=environ, flags=given
    )


def _environ_of_flags(shape: type[Any]) -> dict[str, str]:
    """ROLLBOOK_LISTEN, under the name by which a section's loader looks for it, which will do, too."""
    section = f"{PREFIX}BOOKIE_"
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(section) and name != f"{PREFIX}BOOKIE_ID"
    } | {
        f"{section}{name.upper()}": os.environ[variable]
        for name in (each.name for each in fields(shape))
        if (variable := f"{PREFIX}{name.upper()}") in os.environ
    }


def _listed_in_environ(name: str) -> list[str]:
    return [part for part in os.environ.get(f"{PREFIX}{name.upper()}", "").split(",") if part]


# --- What it runs on --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealMachine:
    disk: Disk = field(default_factory=SystemDisk)
    transport: Transport = field(default_factory=SocketTransport)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=random.SystemRandom)


async def open_store(config: BookieConfig, *, serve: bool) -> MetadataStore:
    """`serve`: if the store is embedded, this process may be the one that serves the others."""
    url = MetadataUrl.parse(config.metadata)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "what is in memory is gone when this process ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return await open_metadata_store(
        url, serve=serve, visit=not serve, session_timeout_s=config.session_timeout_s
    )


def run_with_identity(flags: Mapping[str, Any], use: Callable[[Identity], Awaitable[T]]) -> T:
    configure_logs(level="error", as_json=False)
    with advising(flags):
        return asyncio.run(_with_identity(load_settings(**flags), use))


async def _with_identity(settings: Settings, use: Callable[[Identity], Awaitable[T]]) -> T:
    url = MetadataUrl.parse(settings.bookie.metadata)
    _, _, bookie_id = addresses_of(settings.bookie)
    machine = RealMachine()
    async with await open_store(settings.bookie, serve=False) as store:
        cluster = await open_cluster(store, url.ledgers_root, url=url)
        return await use(
            Identity(
                *(machine.disk, settings.storage, machine.randomness, store, cluster, bookie_id)
            )
        )


# --- Advice -----------------------------------------------------------------------------------


@contextmanager
def advising(flags: Mapping[str, Any]) -> Iterator[None]:
    """Commands that errors recommend can be typed as they stand."""
    try:
        yield
    except RollbookError as error:
        error.next_step = with_flags(error.next_step, flags)
        raise


def with_flags(advice: str, flags: Mapping[str, Any]) -> str:
    words = [
        word
        for name, option in _FLAG_NAMES.items()
        for value in _values(flags.get(name))
        for word in (option, value)
    ]
    for command in (INIT, FORMAT, REJOIN, WRITE_OFF):
        if command in advice:
            return advice.replace(command, shlex.join([*command.split(), *words]))
    return advice


_FLAG_NAMES: Final = {
    "config_file": "--config",
    "metadata": "--metadata",
    "bookie_id": "--bookie-id",
    "listen": "--listen",
    "advertise": "--advertise",
    "journal_dir": "--journal-dir",
    "ledger_dir": "--ledger-dir",
}


def _values(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)

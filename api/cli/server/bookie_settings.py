"""A bookie's settings and metadata store. Commands for a bookie import this module only when they are called."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import structlog

from rollbook.bookie.bk_server_conf import KEYS_OF, lines_of_keys, parse_properties, translate
from rollbook.bookie.bookie import Settings, addresses_of, tls_address_of
from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.proto.addresses import EVERY_ADDRESS, is_wildcard, parse_address
from rollbook.proto.errors import BadConfig
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.runtime.config import (
    PREFIX,
    load_config,
    read_config_file,
    read_config_text,
    telling_who_said,
    variables_of_flags,
)
from rollbook.proto.runtime.host_addresses import address_of_this_host, name_of_this_host
from rollbook.proto.runtime.logging_setup import check_log_level
from rollbook.proto.runtime.metastore import open_metadata_store

logger = structlog.get_logger()

C = TypeVar("C")

_DEFAULT_HTTP_PORT: Final = 8001
_SECTIONS: Final = ("bookie", "storage", "server", "space")
RECOVERY_SECTIONS: Final = ("recovery", "audit", "steward", "heal", "worker", "ledger")
_HEADING: Final = re.compile(rf"^\s*\[({'|'.join(_SECTIONS)})\]", re.MULTILINE)


def load_settings(config_file: str | None = None, **flags: Any) -> Settings:
    """Returns the settings. Flags take precedence over the environment, the environment over the file, and the file
    over defaults. The flag FOO-BAR is ROLLBOOK_FOO_BAR in the environment and foo_bar under [bookie] in the file.
    Raises `BadConfig`.
    """
    return settings_of(read_bookie_config(config_file) if config_file else BookieFile({}), **flags)


def settings_of(file: "BookieFile", **flags: Any) -> Settings:
    """Returns the settings from the contents of a file, the environment and the flags."""
    directories = {
        name: tuple(flags.pop(name, ()) or _listed_in_environ(variable))
        for name, variable in (
            ("journal_dir", _OF_DIRECTORIES["journal_dir"]),
            ("ledger_dir", _OF_DIRECTORIES["ledger_dirs"]),
        )
    }
    if len(directories["journal_dir"]) > 1:
        raise BadConfig(
            "a bookie has only one journal directory", next_step="name the one on the fastest disk"
        )
    storage_flags = {
        "journal_dir": next(iter(directories["journal_dir"]), None),
        "ledger_dirs": directories["ledger_dir"] or None,
    }
    others = {k: v for k, v in os.environ.items() if k not in _OF_DIRECTORIES.values()}
    sources: dict[str, str] = {}
    storage = load_section(
        StorageConfig, "storage", file, storage_flags, others, _OF_DIRECTORIES, sources=sources
    )
    variables = variables_of_flags(BookieConfig)
    return Settings(
        _advertising(
            load_section(
                BookieConfig,
                "bookie",
                file,
                flags,
                variables=variables,
                check=_check_bookie,
                sources=sources,
            )
        ),
        replace(
            storage,
            journal_dir=os.path.abspath(storage.journal_dir),
            ledger_dirs=tuple(map(os.path.abspath, storage.ledger_dirs)),
        ).with_fitting_queue(),
        load_section(ServerConfig, "server", file, sources=sources),
        load_section(SpaceConfig, "space", file, sources=sources),
        sources,
    )


def http_address_of(config: BookieConfig) -> Address:
    """Returns the HTTP address of the bookie. Raises `BadConfig`."""
    return parse_address(
        config.http, "http", default_host=EVERY_ADDRESS, default_port=_DEFAULT_HTTP_PORT
    )


def _advertising(config: BookieConfig) -> BookieConfig:
    """Returns the settings with the advertised address. A bookie that listens on every address advertises its
    host's name, unless `advertise` is set.
    """
    for setting in ("listen", "tls_listen"):
        text = getattr(config, setting)
        if text and not config.advertise:
            place = parse_address(text, setting, default_host=EVERY_ADDRESS, default_port=0)
            if is_wildcard(place.host):
                with BadConfig.about(setting):
                    return replace(config, advertise=name_of_this_host())
    return config


def _check_bookie(config: BookieConfig) -> None:
    config = _advertising(config)
    check_log_level(config.log_level)
    addresses_of(config)
    tls_address_of(config)
    if config.http:
        http_address_of(config)
    with BadConfig.about("metadata"):
        MetadataUrl.parse(config.metadata)


# The environment variables of settings that have a flag for each directory.
_OF_DIRECTORIES: Final = {
    "journal_dir": f"{PREFIX}JOURNAL_DIR",
    "ledger_dirs": f"{PREFIX}LEDGER_DIR",
}


@dataclass(frozen=True, slots=True)
class BookieFile:
    tables: Mapping[str, Mapping[str, Any]]
    # The keys and lines that set each setting, in a file with other names for settings.
    said_by: Mapping[str, str] = field(default_factory=dict)
    path: str | None = None  # The path of the file if it is TOML, for error messages.


def read_bookie_config(path: str) -> BookieFile:
    """Reads a file as TOML if its name ends in .toml, otherwise as Java properties."""
    if path.endswith(".toml"):
        return BookieFile(read_config_file(path, (*_SECTIONS, *RECOVERY_SECTIONS)), path=path)
    text = read_config_text(path)
    if _HEADING.search(text):
        raise BadConfig(
            f"{path} is read as a bk_server.conf, but looks like TOML",
            next_step="give it a name that ends in .toml",
        )
    properties = parse_properties(text)
    places = {
        key: f"{key} in {path} line {line}"
        for key, line in lines_of_keys(text).items()
        if properties[key].strip()  # Skips properties without a value.
    }
    with telling_who_said(places):
        translated = translate(properties, address_of_this_host)
    if translated.ignored:
        logger.info("config_keys_ignored", path=path, keys=translated.ignored)
    if translated.unguarded:
        logger.warning("config_guards_ignored", path=path, keys=translated.unguarded)
    said_by = {
        name: ", ".join(places[key] for key in keys if key in places)
        for name, keys in KEYS_OF.items()
    }
    return BookieFile(translated.tables, {name: keys for name, keys in said_by.items() if keys})


def load_section(
    shape: type[C],
    section: str,
    file: BookieFile,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    variables: Mapping[str, str] | None = None,
    check: Callable[[C], object] | None = None,
    sources: dict[str, str] | None = None,
) -> C:
    given = {name: value for name, value in (flags or {}).items() if value is not False}
    return load_config(
        shape,
        section=section,
        file=file.tables.get(section),
        file_path=file.path,
        environ=environ,
        flags=given,
        variables=variables,
        said_by=file.said_by,
        check=check,
        sources=sources,
    )


def _listed_in_environ(variable: str) -> list[str]:
    return [part for part in os.environ.get(variable, "").split(",") if part]


# --- The metadata store -----------------------------------------------------------------------


async def open_store(config: BookieConfig, *, serve: bool) -> MetadataStore:
    """Opens the metadata store. If it is embedded, `serve` lets this process own it and serve other
    processes.
    """
    url = MetadataUrl.parse(config.metadata)
    if url.backend is Backend.MEMORY:
        raise BadConfig(
            "a metadata store in memory is gone when this process ends",
            next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
        )
    return await open_metadata_store(
        url, serve=serve, visit=not serve, session_timeout_s=config.session_timeout_s
    )

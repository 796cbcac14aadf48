"""Connects `rollbook ledger` to a cluster, and adds next steps to its errors."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from rollbook.api.cli.metadata_option import Metadata
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.open_client import connect
from rollbook.proto.client_credential_safety import require_certificate_of
from rollbook.proto.errors import (
    BadConfig,
    InvalidRequest,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryIncomplete,
    RollbookError,
)
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.runtime.config import load_config, read_config_file
from rollbook.proto.runtime.logging_setup import configure_logs
from rollbook.proto.runtime.metastore import COMMAND_TIMEOUT_S
from rollbook.proto.runtime.tls import client_context

T = TypeVar("T")

# Sections that a configuration file may have.
_SECTIONS: Final = ("bookie", "ledger", "server", "space", "storage")


@dataclass(frozen=True)
class LedgerAccess:
    """The settings for connecting to the cluster."""

    metadata: Metadata
    config_file: str | None
    protocol: str | None
    tls_authorities: str | None
    tls_certificate: str | None
    tls_key: str | None

    def run(
        self,
        work: Callable[[Ledgers], Awaitable[T]],
        *,
        needs_bookies: bool = True,
        **settings: Any,
    ) -> T:
        """Runs the work with a client. `settings` are client settings that the work needs."""
        configure_logs(level="error", as_json=False)
        with _advising(self.metadata):
            return asyncio.run(self._run(work, needs_bookies, settings))

    async def _run(
        self,
        work: Callable[[Ledgers], Awaitable[T]],
        needs_bookies: bool,
        settings: dict[str, Any],
    ) -> T:
        if MetadataUrl.parse(self.metadata.url).backend is Backend.MEMORY:
            raise BadConfig(
                "a metadata store in memory is gone when this command ends",
                next_step="use sqlite:///path for one machine, zk://host,host/ledgers for several",
            )
        tls = None
        require_certificate_of(self.tls_key, self.tls_certificate, "--tls-certificate")
        if self.tls_authorities:
            tls = client_context(
                self.tls_authorities,
                certificate=self.tls_certificate or "",
                key=self.tls_key or "",
            )
        elif self.tls_certificate:
            raise BadConfig(
                "TLS needs --tls-authorities, the CAs that sign the bookies' certificates"
            )
        config = replace(self._config(), **settings)
        async with connect(
            self.metadata.url,
            config,
            tls=tls,
            visits=not needs_bookies,
            open_timeout_s=COMMAND_TIMEOUT_S,
        ) as ledgers:
            return await work(ledgers)

    def _config(self) -> ClientConfig:
        tables = read_config_file(self.config_file, _SECTIONS) if self.config_file else {}
        return load_config(
            ClientConfig,
            section="ledger",
            file=tables.get("ledger"),
            file_path=self.config_file,
            environ=os.environ,
            flags={"protocol_version": int(self.protocol) if self.protocol else None},
        )


@contextmanager
def _advising(metadata: Metadata) -> Iterator[None]:
    """Adds to errors the command that the user can run next."""
    steps: dict[type[RollbookError], str] = {
        NoSuchLedger: f"rollbook ledger ls{metadata.flag}",
        NotEnoughBookies: f"rollbook cluster info{metadata.flag}",
        RecoveryIncomplete: f"rollbook cluster info{metadata.flag}",
    }
    try:
        yield
    except RollbookError as error:
        typed = (step for kind, step in steps.items() if isinstance(error, kind))
        error.next_step = next(typed, error.next_step)
        raise


def custom_of(pairs: Sequence[str]) -> dict[str, bytes]:
    custom: dict[str, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidRequest(f"--custom {pair!r} is not NAME=VALUE")
        if name in custom:
            raise InvalidRequest(
                f"--custom names {name!r:.80} twice", next_step="leave out one of them"
            )
        custom[name] = value.encode()
    return custom


def password_of(password: str | None) -> bytes | None:
    return None if password is None else password.encode()

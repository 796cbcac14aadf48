"""What a log server shows to other log servers, of which it is a client."""

import time

from rollbook.api.access.token_file import stat_of, token_in
from rollbook.api.access.watched_file import WatchedFile
from rollbook.api.client.channels import Security
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.runtime.file_stamp import file_stamp


class ShownToPeers:
    """Servers are clients of each other, with what they are servers with."""

    def __init__(self, config: LogServerConfig) -> None:
        """Raises `BadConfig`."""
        self._config = config
        self._token = WatchedFile(config.token_file, is_token=True) if config.token_file else None

    def security(self) -> Security:
        """Raises `BadConfig`."""
        config, token = self._config, ""
        if self._token is not None:
            token = token_in(self._token.data, stat_of(self._token.path), self._token.path)
        return Security(
            uses_tls=bool(config.tls_certificate),
            authorities=config.tls_authorities,
            certificate=config.tls_certificate if config.tls_authorities else "",
            key=config.tls_key if config.tls_authorities else "",
            token=token,
            insecure=config.insecure,
            name=config.tls_name,
        )

    def look(self) -> object:
        """Another value when what `security` returns may be another one. A file that is empty for a moment changes nothing (AF1)."""
        token = b""
        if self._token is not None:
            self._token.look(time.monotonic_ns(), time.time_ns())
            token = self._token.data
        config = self._config
        files = (config.tls_certificate, config.tls_key, config.tls_authorities)
        return token, tuple(file_stamp(path) for path in files if path)

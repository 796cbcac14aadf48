"""The ETag of a log's configuration. A change or deletion that names it fails if the configuration has changed."""

from hashlib import blake2b

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import MetadataConflict


def etag_of(listed: LedgerList) -> str:
    """The ETag of a log's configuration: equal only for equal configurations of the same log."""
    return f"{text_of(listed.uid)}-{_digest_of(listed.config)}"


def check_etag(log: LogName, listed: LedgerList, etag: str) -> None:
    """Check that the log still has the configuration of this ETag. An empty ETag matches everything. An
    ETag without a uid is from an earlier release; then only the configurations are compared.

    Raises `LogReplaced`, `MetadataConflict`.
    """
    uid, _, digest = etag.rpartition("-")
    check_life(log, text_of(listed.uid), uid)
    if etag and digest != _digest_of(listed.config):
        raise MetadataConflict(
            "the log's configuration has changed", log=str(log), etag=etag_of(listed)
        )


def _digest_of(config: LogConfig) -> str:
    return blake2b(repr(config).encode(), digest_size=8).hexdigest()

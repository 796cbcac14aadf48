"""What an operator may set about a bookie's storage."""

from dataclasses import dataclass

from rollbook.bookie.core.entry_log_format import FILE_BYTES_MAX
from rollbook.proto.errors import BadConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageConfig:
    journal_dir: str
    ledger_dirs: tuple[str, ...]  # The first and the last of them keep the catalog's two copies.
    journal_file_bytes: int = 128 * MIB  # Larger: fewer, longer checkpoints, and a longer replay.
    index_bytes_max: int = 96 * MIB  # Of the file being written, in memory; full, the file ends.
    cache_bytes: int = 192 * MIB  # Records that were written or read lately.
    queued_bytes_max: int = 64 * MIB  # Adds waiting for the journal; above, "busy" is the answer.
    waiting_files_max: int = 4  # Filled journal files not yet indexed; above, no new adds.
    idle_after_ms: int = 100  # Silence after which the journal says what is durable.

    def __post_init__(self) -> None:
        if not self.ledger_dirs:
            raise BadConfig("a bookie needs at least one ledger directory")
        if len(set(self.ledger_dirs)) < len(self.ledger_dirs):
            raise BadConfig("a ledger directory is named twice")
        if self.journal_dir in self.ledger_dirs:
            raise BadConfig("the journal needs a directory of its own")
        if not 16 * 1024 <= self.journal_file_bytes <= FILE_BYTES_MAX // 2:
            raise BadConfig(f"journal_file_bytes must be 16 KiB to {FILE_BYTES_MAX // 2} bytes")
        for name in (
            *("index_bytes_max", "cache_bytes", "queued_bytes_max", "waiting_files_max"),
            "idle_after_ms",
        ):
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name} must be above zero")

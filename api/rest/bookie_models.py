"""Models of a bookie's admin pages. Fields that BookKeeper has, too, keep its names, in camelCase; our own are in
snake_case.

OpenAPI names a model by its `title`, if it has one, and otherwise by its class.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollbook import __version__
from rollbook.api.rest.base_models import CamelCaseModel, SnakeCaseModel
from rollbook.proto.ids import LEDGER_ID_MAX


class RunState(CamelCaseModel):
    model_config = ConfigDict(title="State")

    running: bool = Field(examples=[True])
    read_only: bool = Field(examples=[False])
    shutting_down: bool = Field(examples=[False])
    available_for_high_priority_writes: bool = Field(examples=[True])


class ReadOnly(CamelCaseModel):
    read_only: bool = Field(examples=[True])


class Info(CamelCaseModel):
    free_space: int = Field(examples=[410_000_000_000])
    total_space: int = Field(examples=[500_000_000_000])


class Sanity(CamelCaseModel):
    passed: bool = Field(examples=[True])
    read_only: bool = Field(examples=[False])


class EntryRange(SnakeCaseModel):
    """The entries from `first_entry` to `last_entry`, both included."""

    first_entry: int = Field(ge=-1, le=LEDGER_ID_MAX, examples=[-1])
    last_entry: int = Field(ge=-1, le=LEDGER_ID_MAX, examples=[999])


class LedgerDoubts(SnakeCaseModel):
    ledger_id: int = Field(examples=[42])
    ranges: list[EntryRange]


class Doubts(SnakeCaseModel):
    bookie_id: str = Field(examples=["bk-1"])
    instance_id: str | None = Field(examples=["3f2c0b5a-9d1e-4c7a-8a55-0b8f6f0f2b11"])
    stamp: str = Field(examples=["64af0c55e1b00-2"])
    everything: bool = Field(examples=[False])
    ledgers: list[LedgerDoubts]
    next_after: int | None = Field(examples=[None])


class SettleDoubts(SnakeCaseModel):
    """The possible losses to clear: of one ledger, or (`everything`) that of the bookie as a whole."""

    stamp: str = Field(max_length=64, examples=["64af0c55e1b00-2"])
    everything: bool = Field(False, examples=[False])
    ledger_id: int | None = Field(None, ge=0, le=LEDGER_ID_MAX, examples=[42])
    ranges: list[EntryRange] = Field(default_factory=list, max_length=10_000)


class TriggerGc(CamelCaseModel):
    """The compaction that follows the collection. Without one, only deleted ledgers are removed.

    With `force`, deleted ledgers are removed at once, however many they are. Without it, they are removed after a
    wait; if very many ledgers are missing in the metadata, the store may be the wrong one, and none is removed.
    """

    force_major: bool = Field(False, examples=[False])
    force_minor: bool = Field(False, examples=[True])
    force: bool = Field(False, examples=[False])


class GcState(BaseModel):
    is_in_force_gc: bool = Field(examples=[False])


class GcDetails(CamelCaseModel):
    """Times are milliseconds since 1970; 0 is never."""

    force_compacting: bool = Field(examples=[False])
    major_compacting: bool = Field(examples=[False])
    minor_compacting: bool = Field(examples=[False])
    last_major_compaction_time: int = Field(examples=[0])
    last_minor_compaction_time: int = Field(examples=[1_790_000_000_000])
    major_compaction_counter: int = Field(examples=[0])
    minor_compaction_counter: int = Field(examples=[3])


class Suspended(CamelCaseModel):
    is_major_gc_suspended: bool = Field(examples=[False])
    is_minor_gc_suspended: bool = Field(examples=[False])


class Suspend(CamelCaseModel):
    suspend_major: bool = Field(False, examples=[True])
    suspend_minor: bool = Field(False, examples=[True])


class Resume(CamelCaseModel):
    resume_major: bool = Field(False, examples=[True])
    resume_minor: bool = Field(False, examples=[True])


class ReplayMark(SnakeCaseModel):
    """The position where a replay would start, and the end of the journal."""

    model_config = ConfigDict(title="Mark")

    journal: int = Field(examples=[12])
    first_sequence: int = Field(examples=[40_312])
    active_journal: int = Field(examples=[12])
    active_position: int = Field(examples=[1_048_576])


class Files(SnakeCaseModel):
    journal: list[str] | None = Field(None, examples=[["0000000000000012.journal"]])
    entrylog: list[str] | None = Field(None, examples=[["0000000000000011.log"]])
    index: list[str] | None = Field(None, examples=[["catalog-0000000003.a"]])


class Directory(SnakeCaseModel):
    path: str = Field(examples=["/var/lib/rollbook/ledgers"])
    kind: str = Field(examples=["ledger"])
    free_bytes: int = Field(examples=[410_000_000_000])
    total_bytes: int = Field(examples=[500_000_000_000])


class Status(BaseModel):
    """A summary of the bookie's state."""

    bookie_id: str = Field(examples=["bk-1"])
    address: str | None = Field(examples=["127.0.0.1:3181"])
    version: str = Field(examples=[__version__])
    incarnation: str | None = Field(examples=["5f0c2a…"])
    instance_id: str | None = Field(examples=["2f9f3a1e-7f0e-4a9b-8c45-2f3f7a9d1b77"])
    state: str = Field(examples=["writable"])
    why: str | None = Field(None, examples=[None])
    uptime_s: float = Field(examples=[86_400.0])
    pid: int = Field(examples=[4711])
    ledgers: int = Field(examples=[10_000])
    entries: int = Field(examples=[10_000_000])
    doubtful_ledgers: int = Field(examples=[0])
    doubts_everything: bool = Field(examples=[False])
    entry_logs: int = Field(examples=[120])
    entry_log_bytes: int = Field(examples=[16_000_000_000])
    journal_files_waiting: int = Field(examples=[0])
    journal_queue_bytes: int = Field(examples=[0])
    connections: int = Field(examples=[12])
    entries_added: int = Field(examples=[1_000_000])
    latencies_ms: dict[str, dict[str, float]] = Field(
        examples=[{"journal_sync": {"p50": 0.4, "p99": 2.1}}]
    )
    cache_hit_ratio: float | None = Field(examples=[0.97])
    refusals: dict[str, int] = Field(examples=[{"LEDGER_FENCED": 1}])
    directories: list[Directory]


class LedgerSummary(SnakeCaseModel):
    """The part of one ledger that this bookie stores."""

    ledger_id: int = Field(examples=[7])
    entries: int = Field(examples=[1_000])
    first_entry: int | None = Field(examples=[0])
    last_entry: int | None = Field(examples=[2_998])
    entry_bytes: int = Field(examples=[1_024_000])
    last_add_confirmed: int = Field(examples=[2_997])
    is_fenced: bool = Field(examples=[False])
    is_deleted: bool = Field(examples=[False])
    is_doubtful: bool = Field(examples=[False])


class Place(SnakeCaseModel):
    file: str = Field(examples=["0000000000000011.log"])
    first_entry: int = Field(examples=[0])
    last_entry: int = Field(examples=[2_998])
    entries: int = Field(examples=[1_000])
    entry_bytes: int = Field(examples=[1_024_000])


class Doubt(SnakeCaseModel):
    first_entry: int = Field(examples=[10])
    last_entry: int = Field(examples=[12])


class LedgerDetails(LedgerSummary):
    has_key: bool = Field(examples=[True])
    explicit_lac: int | None = Field(examples=[2_998])
    places: list[Place]
    doubts: list[Doubt]


class LedgerPage(SnakeCaseModel):
    model_config = ConfigDict(title="Ledgers")

    ledgers: list[LedgerSummary]
    next_after: int | None = Field(examples=[None])  # The value of `after` for the next page.


class OperationState(SnakeCaseModel):
    """A background operation. Only one of each kind runs at a time."""

    id: str = Field(examples=["gc-1"])
    kind: str = Field(examples=["gc"])
    state: Literal["running", "done", "failed"] = Field(examples=["done"])
    started_ms: int = Field(examples=[1_790_000_000_000])
    ended_ms: int | None = Field(examples=[1_790_000_000_250])
    result: dict[str, Any] | None = Field(examples=[{"ledgers": 3}])
    problem: dict[str, Any] | None = Field(examples=[None])


class Operations(SnakeCaseModel):
    operations: list[OperationState]


class LogLevel(SnakeCaseModel):
    level: Literal["debug", "info", "warning", "error"] = Field(examples=["info"])

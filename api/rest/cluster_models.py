"""Models of HTTP management, in snake_case. Times are milliseconds since 1970."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from rollbook import __version__
from rollbook.api.rest.base_models import SnakeCaseModel
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.recovery.core.event_derivation import EventKind

_BOOKIES_MAX = 1000


class ClusterSummary(SnakeCaseModel):
    model_config = ConfigDict(title="Cluster")

    instance_id: str = Field(examples=["2f9f3a1e-7f0e-4a9b-8c45-2f3f7a9d1b77"])
    metadata: str = Field(examples=["zk://zk1,zk2,zk3/ledgers"])
    ledgers_root: str = Field(examples=["/ledgers"])
    own_root: str = Field(examples=["/rollbook/ledgers"])
    layout: str = Field(examples=["hierarchical"])
    release: str = Field(examples=[__version__])
    metadata_reachable: bool = Field(examples=[True])


class ClusterHealth(SnakeCaseModel):
    """The health of the cluster and its members, as in `rollbook cluster health`."""

    health: Literal["healthy", "degraded", "unavailable"] = Field(examples=["degraded"])
    bookies: str = Field(examples=["3 of 4 writable"])
    log_servers: str = Field(examples=["2 of 2 reachable"])
    new_logs: str = Field(examples=["have all their copies"])
    degraded_logs: int = Field(examples=[0])
    unopened_logs: int = Field(examples=[0])
    lost_segments: int = Field(examples=[0])
    members: list[dict[str, Any]] = Field(
        examples=[
            [{"kind": "bookie", "id": "bk-4", "state": "down", "address": None, "incarnation": ""}]
        ]
    )


class ClusterBookie(SnakeCaseModel):
    id: str = Field(examples=["bk-2"])
    state: Literal["writable", "read-only", "down"] = Field(examples=["read-only"])
    address: str | None = Field(examples=["10.0.0.5:3181"])
    http: str | None = Field(examples=["10.0.0.5:8001"])
    incarnation: str | None = Field(
        examples=["5f0c2a"]
    )  # Null for a Java bookie, and for a bookie that never started.
    lifecycle: LifecycleState = Field(examples=["draining"])
    lifecycle_since_ms: int | None = Field(examples=[1_795_219_200_000])
    reason: str | None = Field(examples=[None])
    # Ledgers with the bookie in an ensemble when its drain began.
    ledgers_at_start: int | None = Field(examples=[12_000])
    ledgers_left: int | None = Field(examples=[3_100])  # The steward's latest count.
    allowed: list[LifecycleState] = Field(examples=[["active"]])


class ClusterBookies(SnakeCaseModel):
    bookies: list[ClusterBookie]
    next_after: str | None = Field(examples=[None])  # The value of `after` for the next page.


class BookieLifecycle(SnakeCaseModel):
    bookie: str = Field(examples=["bk-2"])
    state: LifecycleState = Field(examples=["draining"])
    since_ms: int | None = Field(examples=[1_795_219_200_000])
    reason: str | None = Field(examples=[None])
    ledgers_at_start: int | None = Field(examples=[12_000])
    ledgers_left: int | None = Field(examples=[3_100])
    allowed: list[LifecycleState] = Field(examples=[["active"]])


class WantedLifecycle(SnakeCaseModel):
    """`draining` begins a drain, or retries a failed one. `active` cancels or undoes a drain. `drained` marks the
    bookie as drained.
    """

    state: Literal["draining", "active", "drained"] = Field(examples=["draining"])
    # True: drain even if some ledgers have no other bookie.
    force: StrictBool = Field(False, examples=[False])


class BookieIds(SnakeCaseModel):
    bookies: list[str] = Field(min_length=1, max_length=_BOOKIES_MAX, examples=[["bk-2", "bk-3"]])


class Removal(SnakeCaseModel):
    """Whether these bookies may all be removed together."""

    safe_to_remove: bool = Field(examples=[False])
    bookies: list[str] = Field(examples=[["bk-2 (draining, named by 3100 ledgers)"]])
    ledgers_naming_them: int = Field(examples=[3_100])
    below_ack_quorum_without_them: int = Field(examples=[0])
    without_a_copy_without_them: int = Field(examples=[0])
    ledgers_unreadable: int = Field(examples=[0])
    taking_entries: list[str] = Field(examples=[[]])


class ClusterLedger(SnakeCaseModel):
    ledger_id: int = Field(examples=[7])
    state: str = Field(examples=["closed"])
    quorum: str = Field(examples=["3/3/2"])  # Ensemble, write and ack quorum.
    digest: str | None = Field(examples=["crc32c"])
    last_entry: int | None = Field(examples=[2_998])
    length: int | None = Field(examples=[1_024_000])
    fragments: int = Field(examples=[2])
    created: str = Field(examples=["2026-11-20T10:00:00Z"])
    version: int = Field(examples=[3])
    has_password: bool = Field(examples=[False])
    custom: dict[str, str] = Field(examples=[{"application": "orders"}])


class ClusterLedgers(SnakeCaseModel):
    """A page may have few ledgers, or none, although there is a next page."""

    ledgers: list[ClusterLedger]
    next_after: int | None = Field(examples=[None])


class LedgerFragment(SnakeCaseModel):
    first_entry: int = Field(examples=[0])
    last_entry: int | None = Field(examples=[2_998])
    ensemble: list[str] = Field(examples=[["bk-1", "bk-2", "bk-3"]])
    # One state for each bookie of `ensemble`.
    places: list[str] = Field(examples=[["writable", "read-only", "down"]])


class LedgerWithPlaces(SnakeCaseModel):
    ledger_id: int = Field(examples=[7])
    state: str = Field(examples=["closed"])
    quorum: str = Field(examples=["3/3/2"])
    digest: str | None = Field(examples=["crc32c"])
    last_entry: int | None = Field(examples=[2_998])
    length: int | None = Field(examples=[1_024_000])
    created: str = Field(examples=["2026-11-20T10:00:00Z"])
    version: int = Field(examples=[3])
    has_password: bool = Field(examples=[False])
    custom: dict[str, str] = Field(examples=[{"application": "orders"}])
    fragments: list[LedgerFragment]
    short: bool = Field(examples=[True])  # The ledger is marked, since it lacks copies.
    missing: list[str] = Field(examples=[["bk-3"]])
    short_since_ms: int | None = Field(examples=[1_795_219_200_000])
    repair_problem: str | None = Field(examples=[None])  # The reason why the last repair failed.
    lost: list[str] = Field(examples=[["10-12"]])  # Entries without a copy.


class BadEntries(SnakeCaseModel):
    ledger_id: int = Field(examples=[7])
    kind: Literal["bad copy", "no copy"] = Field(examples=["bad copy"])
    said_by: Literal["auditor", "worker"] = Field(examples=["auditor"])
    bookies: str = Field(examples=["bk-3"])
    first_entry: int = Field(examples=[10])
    last_entry: int = Field(examples=[12])
    since_ms: int | None = Field(examples=[1_795_219_200_000])


class BadLedgers(SnakeCaseModel):
    entries: list[BadEntries]
    next_after: int | None = Field(examples=[None])


class Recovery(BaseModel):
    """The state of recovery as in `rollbook recovery status`, the copy rate, and the first hundred tasks."""

    model_config = ConfigDict(extra="allow")

    autorecovery: Literal["enabled", "paused"] = Field(examples=["enabled"])
    auditor: str | None = Field(examples=["recovery-1"])
    steward: str | None = Field(examples=["recovery-1"])
    delay_s: int | str = Field(examples=[300])
    bytes_per_s: int | str = Field(examples=[67_108_864])
    ledgers_marked: int | str = Field(examples=[12])
    ledgers_to_drain: int | str = Field(examples=[0])
    ledgers_locked: int = Field(examples=[4])
    repairs_failed: int = Field(examples=[0])
    ledgers_unrecoverable: int = Field(examples=[0])
    bookies_missing: str = Field(examples=["bk-4"])
    processes: list[dict[str, Any]] = Field(
        examples=[[{"process": "recovery-1", "part": "worker", "state": "running"}]]
    )
    tasks: list[dict[str, Any]] = Field(
        examples=[[{"ledger_id": 7, "task": "repair", "bookies": ["bk-4"]}]]
    )


class WantedAudit(SnakeCaseModel):
    """`anyway`: mark the ledgers of missing bookies even if most of the cluster is missing."""

    anyway: StrictBool = Field(False, examples=[False])


class Audited(SnakeCaseModel):
    auditor: str | None = Field(examples=["recovery-1"])
    bookies_missing: str = Field(examples=["bk-4"])
    approved: bool = Field(examples=[False])


class Switch(SnakeCaseModel):
    enabled: StrictBool = Field(examples=[False])


class Delay(SnakeCaseModel):
    delay_s: StrictInt = Field(ge=0, le=2**31 - 1, examples=[300])


class WantedRate(SnakeCaseModel):
    bytes_per_s: StrictInt = Field(ge=0, lt=10**17, examples=[67_108_864])  # 0: unlimited.


class Rate(SnakeCaseModel):
    bytes_per_s: int | Literal["unlimited"] = Field(examples=["unlimited"])


class ClusterOperation(SnakeCaseModel):
    """An operation. Operations in metadata can be cancelled, and are kept for seven days after their end."""

    id: str = Field(examples=["5f0c2a7e9b1d4c3fa0865d2be9147c31"])
    kind: str = Field(examples=["drain"])
    about: dict[str, Any] = Field(
        examples=[{"bookies": ["bk-2", "bk-3"], "at_most": 1, "force": False}]
    )
    principal: str = Field(examples=["ops"])  # The caller who requested it.
    state: Literal["queued", "running", "done", "failed", "cancelled"] = Field(examples=["running"])
    created_ms: int = Field(examples=[1_795_219_200_000])
    started_ms: int | None = Field(examples=[1_795_219_200_400])
    ended_ms: int | None = Field(examples=[None])
    # How many of `total` are done: ledgers, or the entries of a verification.
    done: int = Field(examples=[8_900])
    total: int | None = Field(examples=[12_000])
    eta_s: int | None = Field(examples=[40])  # Remaining seconds at the average pace so far.
    cancel_asked: bool = Field(examples=[False])
    result: dict[str, Any] | None = Field(examples=[None])
    problem: dict[str, Any] | None = Field(examples=[None])


class ClusterOperations(SnakeCaseModel):
    operations: list[ClusterOperation]
    next_after: str | None = Field(examples=[None])  # The value of `after` for the next page.


class WantedDrain(SnakeCaseModel):
    """The bookies to drain, in this order. At most `at_most` of them drain at the same time."""

    bookies: list[str] = Field(min_length=1, max_length=_BOOKIES_MAX, examples=[["bk-2", "bk-3"]])
    at_most: StrictInt = Field(_BOOKIES_MAX, ge=1, le=_BOOKIES_MAX, examples=[1])
    # True: proceed even if some ledgers have no other bookie.
    force: StrictBool = Field(False, examples=[False])


class WantedRecovery(SnakeCaseModel):
    """The bookies whose entries are copied to other bookies, of which those in `to` are preferred. Each of
    `bookies` must be stopped or read-only.
    """

    bookies: list[str] = Field(min_length=1, max_length=_BOOKIES_MAX, examples=[["bk-4"]])
    to: list[str] = Field([], max_length=_BOOKIES_MAX, examples=[[]])
    skip_open: StrictBool = Field(
        False, examples=[False]
    )  # True: skip ledgers that may have a writer.


class StoredCookie(SnakeCaseModel):
    """A cookie in BookKeeper's own form."""

    bookie: str = Field(examples=["bk-2"])
    text: str = Field(
        examples=['5\nbookieHost: "bk-2"\njournalDir: "/journal"\nledgerDirs: "1\\t/ledgers"\n']
    )
    version: int | None = Field(examples=[0])  # Null: this cookie is not stored.


class Cookies(SnakeCaseModel):
    cookies: list[StoredCookie]


class WantedCookie(SnakeCaseModel):
    """`version`: the version of the cookie that is replaced; null if there is none yet."""

    text: str = Field(
        max_length=32_768, examples=['5\nbookieHost: "bk-2"\njournalDir: "/journal"\n']
    )
    version: StrictInt | None = Field(None, ge=0, lt=2**31, examples=[0])


class WantedDirectories(SnakeCaseModel):
    journal_dirs: list[str] = Field(min_length=1, max_length=100, examples=[["/journal"]])
    ledger_dirs: list[str] = Field(min_length=1, max_length=100, examples=[["/ledgers"]])
    index_dirs: list[str] = Field([], max_length=100, examples=[[]])


class DeletedLedger(SnakeCaseModel):
    ledger_id: int = Field(examples=[7])
    state: Literal["deleted"] = Field(examples=["deleted"])


class BookiePage(SnakeCaseModel):
    """The bookie's response, under its own names."""

    bookie: str = Field(examples=["bk-2"])
    answer: Any = Field(examples=[{"readOnly": False}])


class ClusterEvent(SnakeCaseModel):
    """`id`: the metadata node that changed, the transaction that created it, and the node's version or the change."""

    id: str = Field(examples=["lifecycle/bk-2@1f3.2"])
    kind: EventKind = Field(examples=["lifecycle"])
    at_ms: int = Field(examples=[1_795_219_200_000])
    node: str = Field(examples=["lifecycle/bk-2"])
    bookies: list[str] = Field(examples=[["bk-2"]])  # At most twenty bookies.
    ledger_id: int | None = Field(examples=[None])
    log: str | None = Field(examples=[None])
    operation: str | None = Field(examples=[None])
    state: str | None = Field(examples=["drained"])
    text: str = Field(examples=["Bookie bk-2 is drained: no ledger names it."])


class ClusterEvents(SnakeCaseModel):
    events: list[ClusterEvent]
    next_after: str | None = Field(examples=[None])  # The value of `after` for the next page.


CallbackKind = Literal[
    "lifecycle",
    "bookie-lost",
    "bookie-back",
    "bad-ledger",
    "ledger-overdue",
    "recovery-paused",
    "recovery-resumed",
    "auditor",
    "operation-started",
    "operation-ended",
]


class WantedCallback(SnakeCaseModel):
    """Without `kinds`, events of all kinds are sent. With `bookie`, only events that name this bookie are sent."""

    url: str = Field(max_length=2000, examples=["https://hooks.example.com/rollbook"])
    kinds: list[CallbackKind] = Field([], max_length=20, examples=[["lifecycle", "bookie-lost"]])
    bookie: str | None = Field(None, min_length=1, max_length=255, examples=[None])


class Delivery(SnakeCaseModel):
    """One attempt to deliver an event."""

    event: str = Field(examples=["lifecycle/bk-2@1f3.2"])
    kind: EventKind = Field(examples=["lifecycle"])
    attempt: int = Field(examples=[1])
    at_ms: int = Field(examples=[1_795_219_200_000])
    took_ms: int = Field(examples=[12])
    status: int | None = Field(examples=[204])  # Null: no receiver responded.
    problem: str | None = Field(examples=[None])
    outcome: Literal["delivered", "retrying", "given-up"] = Field(examples=["delivered"])


class Deliveries(SnakeCaseModel):
    deliveries: list[Delivery]
    waiting: int = Field(examples=[0])  # Undelivered events.


class Callback(SnakeCaseModel):
    id: str = Field(examples=["5f0c2a7e9b1d4c3fa0865d2be9147c31"])
    url: str = Field(examples=["https://hooks.example.com/…"])
    kinds: list[CallbackKind] = Field(examples=[["lifecycle", "bookie-lost"]])
    bookie: str | None = Field(examples=[None])
    principal: str = Field(examples=["boss"])  # The caller who requested it.
    created_ms: int = Field(examples=[1_795_219_200_000])
    waiting: int = Field(examples=[0])
    last: Delivery | None


class NewCallback(Callback):
    """`secret`: the key of the signatures. Only this response shows it."""

    secret: str = Field(
        examples=["9b1d4c3fa0865d2be9147c315f0c2a7e9b1d4c3fa0865d2be9147c315f0c2a7e"]
    )


class Callbacks(SnakeCaseModel):
    callbacks: list[Callback]

"""The metrics of one bookie, counted since it started.

Each component counts its work here, once for each chunk, write or batch, never for each entry.
Values that exist anyway (a queue's bytes, the disk's space) are not counted: their owner registers
a function here that a scrape calls. The names of metrics get the prefix `rollbook_bookie_`.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.stats import (
    Gauge,
    Gauges,
    Histogram,
    counter,
    counter_gauge,
    counters,
    gauge,
    gauges,
    latencies,
    latency,
    sizes,
)

REQUESTS: Final = (
    "add",
    "read",
    "batch_read",
    "long_poll",
    "fence",
    "read_lac",
    "write_lac",
    "force",
    "list_entries",
    "info",
    "other",
)


@dataclass(slots=True)
class Stats:
    # --- Server -------------------------------------------------------------------------------
    requests: dict[str, Histogram] = latencies(
        "request_seconds",
        "The time from the arrival of a request to its answer.",
        "request",
        REQUESTS,
    )
    refusals: dict[str, int] = counters(
        "refusals_total", "Requests that were answered with an error, by reason.", "reason"
    )
    received_bytes: int = counter("received_bytes_total", "Bytes that were received from clients.")
    sent_bytes: int = counter("sent_bytes_total", "Bytes that were sent to clients.")
    chunk_entries: Histogram = sizes(
        "chunk_entries", "Adds that were parsed and passed to the journal together."
    )
    connections: Gauge = gauge("connections", "Clients that are connected.")
    connections_accepted: int = counter("connections_accepted_total", "Clients that connected.")
    connections_closed: dict[str, int] = counters(
        "connections_closed_total",
        "Connections that the bookie closed or refused, by reason.",
        "reason",
    )
    buffered_bytes: Gauge = gauge(
        "buffered_bytes", "Bytes of requests and answers that are in memory for clients."
    )
    # --- Journal ------------------------------------------------------------------------------
    journal_writes: Histogram = latency(
        "journal_sync_seconds", "The time until one write to the journal is durable."
    )
    journal_write_bytes: Histogram = sizes(
        "journal_write_bytes", "The size of one write to the journal."
    )
    journal_write_entries: Histogram = sizes(
        "journal_write_entries", "The number of entries in one write to the journal."
    )
    journal_queue_bytes: Gauge = gauge(
        "journal_queue_bytes", "Bytes that were accepted but are not yet durable in the journal."
    )
    journal_rolls: int = counter("journal_rolls_total", "Journal files that were filled.")
    journal_files_waiting: Gauge = gauge(
        "journal_files_waiting", "Filled journal files that are not entry logs yet."
    )
    # --- Checkpoint ---------------------------------------------------------------------------
    checkpoints: dict[str, int] = counters(
        "checkpoints_total",
        "Checkpointed journal files that were adopted, rewritten or empty.",
        "how",
    )
    checkpoint_latency: Histogram = latency(
        "checkpoint_seconds", "The time of one checkpoint, until the replay start has moved."
    )
    checkpoint_failures: int = counter(
        "checkpoint_failures_total", "Checkpoints that failed because of a disk error."
    )
    # --- Stored entries -----------------------------------------------------------------------
    entries_added: int = counter("entries_added_total", "Entries that became durable.")
    entry_bytes_added: int = counter(
        "entry_added_bytes_total", "Bytes of entries that became durable."
    )
    ledgers: Gauge = gauge(
        "ledgers", "Ledgers that the bookie knows, including recently deleted ones."
    )
    entries: Gauge = gauge("entries", "Entries in entry logs and journal files, including repeats.")
    entry_logs: Gauge = gauge("entry_logs", "The number of entry logs.")
    entry_log_bytes: Gauge = gauge("entry_log_bytes", "Bytes of all entry logs.")
    memtable_bytes: Gauge = gauge(
        "memtable_bytes", "Bytes of memory for the index of the journal files."
    )
    doubtful_ledgers: Gauge = gauge(
        "doubtful_ledgers", "Ledgers with entries that may have been lost and are UNKNOWN."
    )
    doubts_everything: Gauge = gauge(
        "doubts_everything", "1 if entries of any ledger may have been lost; else 0."
    )
    damages_met: int = counter("damages_met_total", "Damaged records that readers found.")
    # --- Cache --------------------------------------------------------------------------------
    cache_hits: Gauge = counter_gauge("cache_hits_total", "Records that were found in the cache.")
    cache_misses: Gauge = counter_gauge(
        "cache_misses_total", "Records that were read from the disk."
    )
    cache_bytes: Gauge = gauge("cache_bytes", "Bytes of the records in the cache.")
    # --- Space --------------------------------------------------------------------------------
    disk_free_bytes: Gauges = gauges(
        "disk_free_bytes", "Free bytes on the disk of each directory.", "directory"
    )
    disk_total_bytes: Gauges = gauges(
        "disk_total_bytes", "Size of the disk of each directory.", "directory"
    )
    read_only: Gauge = gauge("read_only", "1 while new entries are refused; else 0.")
    gc_runs: dict[str, int] = counters(
        "gc_runs_total", "Scans for deleted ledgers, by outcome.", "outcome"
    )
    gc_latency: Histogram = latency("gc_seconds", "The time of one scan for deleted ledgers.")
    gc_ledgers: int = counter(
        "gc_ledgers_total", "Ledgers that were deleted because metadata no longer names them."
    )
    gc_surplus_ledgers: Gauge = gauge(
        "gc_surplus_ledgers",
        "Closed ledgers with copies here although metadata names other bookies.",
    )
    gc_dropped_ledgers: int = counter(
        "gc_dropped_ledgers_total", "Closed ledgers whose surplus copies were dropped."
    )
    gc_logs: int = counter(
        "gc_logs_total", "Entry logs that were removed because they had no live entries."
    )
    gc_freed_bytes: int = counter(
        "gc_freed_bytes_total", "Bytes of entry logs that were removed without live entries."
    )
    compactions: dict[str, int] = counters(
        "compactions_total", "Entry logs that were rewritten, minor or major.", "kind"
    )
    compaction_read_bytes: int = counter(
        "compaction_read_bytes_total", "Bytes of entry logs that were rewritten."
    )
    compaction_written_bytes: int = counter(
        "compaction_written_bytes_total", "Bytes of the entry logs that compaction wrote."
    )
    compaction_failures: int = counter("compaction_failures_total", "Compactions that failed.")
    scrub_runs: int = counter(
        "scrub_runs_total", "Rounds in which the scrub verified all entry logs."
    )
    scrub_bytes: int = counter("scrub_read_bytes_total", "Bytes that the scrub read and verified.")
    scrub_damages: int = counter("scrub_damages_total", "Damaged places that the scrub found.")
    # --- Membership ---------------------------------------------------------------------------
    registered: Gauge = gauge("registered", "1 while the bookie is registered; else 0.")
    sessions_lost: Gauge = counter_gauge("sessions_lost_total", "Metadata sessions that expired.")

    # --- Facts that several metrics count -----------------------------------------------------

    def on_entries(self, entries: int, entry_bytes: int) -> None:
        """Counts entries that one write has made durable."""
        if entries:
            self.journal_write_entries.observe(entries)
            self.entries_added += entries
            self.entry_bytes_added += entry_bytes

    def on_checkpoint(self, how: str, elapsed_ns: int) -> None:
        self.checkpoints[how] = self.checkpoints.get(how, 0) + 1
        self.checkpoint_latency.observe(elapsed_ns)

    def on_compaction(self, kind: str, logs: int, bytes_before: int, bytes_after: int) -> None:
        self.compactions[kind] = self.compactions.get(kind, 0) + logs
        self.compaction_read_bytes += bytes_before
        self.compaction_written_bytes += bytes_after

    def on_refusals(self, reason: str, times: int = 1) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + times

"""The metrics of one log server, counted since its start. Their names begin with `rollbook_log_`.

    an append    queue      from its arrival until its log's owner takes it, which may have to open the log or wait for room
                 sequence   the owner checks it, places it in the order, stamps it, hands it to the ledger
                 store      until bookies have confirmed it and all appends before it, and the response is ready

Stages are measured only for appends that pass all of them. A refused or repeated append counts only in
`append_seconds`. An append by a single request is not counted if the caller has left.

A scrape reads values that the server keeps anyway. Labels that name logs are bounded: only the largest
lags are reported.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.messages import AppendAck
from rollbook.proto.errors import RollbookError
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
)

PART: Final = "log"
NAMESPACE: Final = f"rollbook_{PART}"
STAGES: Final = ("queue", "sequence", "store")
LAGS_MAX: Final = 500
_NS_PER_S: Final = 1e9


class AppendLaps:
    """The times of the event loop at which an append reached its stages."""

    __slots__ = ("began_s", "came_s", "taken_s")

    def __init__(self, came_s: float) -> None:
        self.came_s = self.began_s = self.taken_s = came_s


@dataclass(slots=True)
class LogStats:
    # --- Appends ------------------------------------------------------------------------------
    stages: dict[str, Histogram] = latencies(
        "append_stage_seconds", "The time of one stage of an append.", "stage", STAGES
    )
    appends: Histogram = latency(
        "append_seconds",
        "The time from the arrival of an append, which is one batch, to its response.",
    )
    records: int = counter("appended_records_total", "Records that were appended.")
    appended_bytes: int = counter(
        "appended_bytes_total", "Bytes of the blocks of appended records."
    )
    duplicates: int = counter("duplicates_total", "Appends that repeated an earlier batch.")
    refusals: dict[str, int] = counters(
        "append_refusals_total",
        "Appends that got an error, by reason.",
        "reason",
    )
    # --- Readers ------------------------------------------------------------------------------
    readers: Gauge = gauge("readers", "Readers, including those of single requests.")
    sent_records: int = counter("told_records_total", "Records that were sent to readers.")
    sent_bytes: int = counter("told_bytes_total", "Bytes of the blocks that were sent to readers.")
    reader_lags: Gauges = gauges(
        "reader_lag_records", "The largest lag of a log's readers, in records.", "log"
    )
    cursor_lags: Gauges = gauges(
        "cursor_lag_records",
        "The lag of a cursor, in records, for logs that this server owns, and ownerless logs that it looks after.",
        "cursor",
    )
    cursors_without_lag: Gauge = gauge(
        "cursors_untold",
        "Cursors beyond the first 1,000 of their log, for which no lag is reported.",
    )
    # --- Logs ---------------------------------------------------------------------------------
    logs_owned: Gauge = gauge("logs_owned", "Logs that this server owns.")
    logs_degraded: Gauge = gauge(
        "logs_degraded",
        "Owned logs whose open segment is written to fewer bookies than the log wants.",
    )
    logs_unopened: Gauge = gauge(
        "logs_unopened",
        "Logs that this server should own, but repeatedly fails to open.",
    )
    segments_lost: Gauge = gauge(
        "segments_lost",
        "Segments whose ledgers were deleted, as found so far in the logs that this server looks after.",
    )
    logs_opened: Gauge = counter_gauge(
        "logs_opened_total", "Logs that this server became the owner of."
    )
    logs_taken_over: Gauge = counter_gauge(
        "logs_taken_over_total",
        "Logs taken from an owner that was believed to be alive, but refused connections.",
    )
    logs_handed_over: Gauge = counter_gauge(
        "logs_handed_over_total", "Logs that this server closed and released."
    )
    producer_memory_bytes: Gauge = gauge(
        "producer_memory_bytes", "Bytes that all logs remember of their producers."
    )
    clock_apart_seconds: Gauge = gauge(
        "clock_apart_seconds",
        "Seconds by which this server's clock is ahead of the metadata store's.",
    )
    clock_refused: Gauge = gauge(
        "clock_refused",
        "1 while this server owns no logs, because most other clocks disagree with its clock.",
    )
    tail_memory_bytes: Gauge = gauge(
        "tail_memory_bytes", "Bytes of the newest blocks of all logs, kept for readers."
    )

    def on_answered(
        self, answer: AppendAck | RollbookError, size: int, laps: AppendLaps, now_s: float
    ) -> None:
        self.appends.observe(int((now_s - laps.came_s) * _NS_PER_S))
        if not isinstance(answer, AppendAck):
            reason = answer.code.reason
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
        elif answer.is_duplicate:
            self.duplicates += 1
        else:
            self.records += answer.next_offset - answer.first_offset
            self.appended_bytes += size
            stages = self.stages
            stages["queue"].observe(int((laps.began_s - laps.came_s) * _NS_PER_S))
            stages["sequence"].observe(int((laps.taken_s - laps.began_s) * _NS_PER_S))
            stages["store"].observe(int((now_s - laps.taken_s) * _NS_PER_S))


def largest(lags: Iterable[tuple[str, int]]) -> Mapping[str, float]:
    """The largest lags, by name."""
    return dict(sorted(heapq.nlargest(LAGS_MAX, lags, key=lambda each: each[1])))

"""The metrics of a recovery server. Their names are prefixed with `rollbook_recovery_`.

Only the leading process shows what the auditor or the steward knows. All other processes show 0, so that sums
over processes are right. `proto/runtime/prometheus_text.py` exports the metrics to Prometheus.
"""

from dataclasses import dataclass
from typing import Final

from rollbook.proto.stats import Gauge, counter_gauge, gauge

PART: Final = "recovery"


@dataclass
class RecoveryStats:
    is_auditor: Gauge = gauge("is_auditor", "1 while this process leads as auditor; else 0.")
    is_steward: Gauge = gauge("is_steward", "1 while this process leads as steward; else 0.")
    index_ledgers: Gauge = gauge("index_ledgers", "Ledgers in the index of this process.")
    missing_bookies: Gauge = gauge("missing_bookies", "Bookies that are not registered.")
    lost_bookies: Gauge = gauge(
        "lost_bookies", "Bookies that have been missing for the whole lost-bookie delay."
    )
    short_ledgers: Gauge = gauge(
        "short_ledgers", "Ledgers that are marked as short of copies, counted twice a minute."
    )
    overdue_ledgers: Gauge = gauge(
        "overdue_ledgers", "Marked ledgers that were marked `overdue_s` ago or earlier."
    )
    unmarked_ledgers: Gauge = gauge(
        "unmarked_ledgers", "Ledgers of lost bookies that are about to be marked."
    )
    draining_bookies: Gauge = gauge("draining_bookies", "Bookies that are draining.")
    draining_ledgers: Gauge = gauge(
        "draining_ledgers", "Ledgers that name draining bookies, counted once for each bookie."
    )
    running_repairs: Gauge = gauge("running_repairs", "Ledgers that are being repaired.")
    repairs: Gauge = counter_gauge("repairs_total", "Ledgers that were repaired.")
    failures: Gauge = counter_gauge("failures_total", "Attempts at a repair that failed.")
    unrecoverable: Gauge = counter_gauge(
        "unrecoverable_total", "Ledgers that were found to have lost entries."
    )
    copied_entries: Gauge = counter_gauge("copied_entries_total", "Entries that were copied.")
    copied_bytes: Gauge = counter_gauge("copied_bytes_total", "Bytes of those entries.")

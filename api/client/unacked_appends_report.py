"""A client's report of records that were submitted and are not acknowledged (PC1)."""

import logging
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.record_accumulator import RecordAccumulator, Tally
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import Outcome, RecordsUnacked, RollbookError

_logger: Final = logging.getLogger("rollbook.client")  # Only servers depend on structlog.
_NEXT_STEP: Final = "read the end of the log before you submit them again"


@dataclass(frozen=True, slots=True)
class UnackedRecords:
    """The unacknowledged records of one writer whose caller has seen no error."""

    log: LogName
    tally: Tally
    failure: RollbookError

    def error(self) -> RollbookError:
        """Returns the writer's own failure, with the numbers of its records."""
        error = again(self.failure, self.failure.outcome)
        error.ids |= {"in_doubt": self.tally.in_doubt, "not_appended": self.tally.not_appended}
        return error


def take_loss(log: LogName, accumulator: RecordAccumulator) -> UnackedRecords | None:
    """Returns the writer's unacknowledged records if the writer has failed and the caller has seen
    no error of it. Otherwise, and from the second call on, returns None."""
    if not accumulator.hides_losses or accumulator.failure is None:
        return None
    accumulator.is_noticed = True
    return UnackedRecords(log, accumulator.tally, accumulator.failure)


def error_of(losses: Iterable[UnackedRecords]) -> RecordsUnacked | None:
    """Returns one error for the losses of all writers of a client."""
    found = list(losses)
    if not found:
        return None
    tally = Tally(
        in_doubt=sum(each.tally.in_doubt for each in found),
        not_appended=sum(each.tally.not_appended for each in found),
    )
    first = found[0]
    error = RecordsUnacked(
        f"{tally}: {first.failure}",
        next_step=_NEXT_STEP if tally.in_doubt else "",
        logs=", ".join(sorted({str(each.log) for each in found})),
        in_doubt=tally.in_doubt,
        not_appended=tally.not_appended,
    )
    error.outcome = Outcome.UNKNOWN if tally.in_doubt else Outcome.NOT_APPLIED
    error.__cause__ = first.failure
    return error


def attach(error: RollbookError, to: BaseException) -> None:
    """Adds the report to an exception that is being raised, because that one matters more."""
    _logger.warning("records_unacked: %s", error)
    to.add_note(f"{type(error).__name__}: {error}")


def on_ended(log: LogName, pending: int) -> None:
    """Logs the pending records of a writer that was ended at once, for example by a cancelled
    caller."""
    if pending:
        _logger.warning("writer_ended: records_in_doubt=%d log=%s", pending, log)


def on_collected(writer: object, log: LogName, pending: int) -> None:
    """Logs the loss of a writer that was garbage-collected, because no caller can get its error."""
    if pending:
        _logger.warning("writer_collected: records_in_doubt=%d log=%s", pending, log)
        warnings.warn(
            f"a writer of {log} was not closed: {pending} records may or may not have been appended",
            ResourceWarning,
            stacklevel=2,
            source=writer,
        )

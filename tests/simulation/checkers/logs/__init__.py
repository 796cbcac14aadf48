"""Named logs, judged by what their users get and by what the metadata store commits.

Nothing is known of the inside of a log server. `record_format.py` hears users: acks, refusals, records, tails,
grants. `lists.py` hears commits, and the answers of servers in the moment they are given. The rules are
those of the log protocol, each under the name by which a run fails.
"""

from typing import Final

from tests.simulation.checkers.logs import lists, records
from tests.simulation.checkers.logs.lists import ListRules
from tests.simulation.checkers.logs.records import LogFacts, Records

RULES: Final = {
    "L1": records.OFFSETS,
    "L2": records.ONE_SEQUENCE,
    "L3": records.WRITER_EPOCH,
    "L4": lists.SEGMENTS,
    "L5": records.ONCE,
    "L6": records.TRUNCATION,
    "L7": records.CONDITION,
    "I1": records.LINEARIZABLE,
    "I2": records.OFFSETS,
    "I3": records.WRITER_EPOCH,
    "I4": records.LINEARIZABLE,
    "I5": records.ONE_SEQUENCE,
    "I6": lists.MARKS,
    "I8": lists.UNSETTLED,
    "SV2": lists.PATIENCE,
    "RL6": records.COMPLETE,
    "LL1": lists.UNCLOSED,
    "LL4": lists.MEMORY,
    "RT1": lists.EXPIRY,
    "OR1": lists.DELETION,
}

__all__ = ["RULES", "ListRules", "LogFacts", "Records"]

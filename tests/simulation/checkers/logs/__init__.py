"""Named logs, judged by what their users get and by what the metadata store commits.

Nothing is known of the inside of a log server. `records.py` hears users: acks, refusals, records, tails,
grants. `lists.py` hears commits, and the answers of servers in the moment they are given. Both have rules, each
under the name by which a run fails, with the invariants that it checks.
"""

from tests.simulation.checkers.logs.lists import ListRules
from tests.simulation.checkers.logs.records import LogFacts, Records

__all__ = ["ListRules", "LogFacts", "Records"]

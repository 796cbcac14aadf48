"""The clients of `tests/chaos/client.py`, for a cluster of which one bookie is down and another one drains.

python -m tests.chaos.cluster.client ROLE METADATA-URL HISTORY-FILE FLAW-OR-MINUS

writer     needs three bookies, not five
auditor    lets no copy be missing: of each entry there are as many as the write quorum
"""

from typing import Final

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.copy_comparison import CopyState
from tests.chaos import client


class Writer(client.Writer):
    quorums = ((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3))


class Auditor(client.Auditor):
    config = ClientConfig(
        connect_timeout_s=10.0, read_deadline_s=30.0
    )  # Long enough for a busy machine.
    wrong = tuple(state for state in CopyState if state is not CopyState.GOOD)


ROLES: Final = client.ROLES | {"writer": Writer, "auditor": Auditor}

if __name__ == "__main__":
    client.main(ROLES)

"""One random history, every store: whatever a caller can see must be the same.

`run` plays plans (see `plan`) on each store (`stages`) through its own clients and compares the
transcripts (`play`): each result, each refusal, each session event, the watches' events, and the tree
that is left. A plan that tells stores apart is cut down to the steps that do it.
"""

from tests.contract.differential.run import run

__all__ = ["run"]

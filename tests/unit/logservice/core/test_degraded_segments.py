"""LS13: copies beyond the ack quorum may be given up, and no others."""

import pytest

from rollbook.logservice.core.degraded_segments import degraded_quorum, degraded_to
from rollbook.proto.quorum import Quorum


@pytest.mark.parametrize(
    ("wanted", "usable", "smaller"),
    [
        (Quorum(3, 3, 2), 3, None),
        (Quorum(3, 3, 2), 4, None),
        (Quorum(3, 3, 2), 2, Quorum(2, 2, 2)),
        (Quorum(3, 3, 2), 1, None),
        (Quorum(3, 3, 2), 0, None),
        (Quorum(4, 3, 2), 3, Quorum(3, 3, 2)),
        (Quorum(5, 3, 2), 2, Quorum(2, 2, 2)),
        (Quorum(2, 2, 2), 1, None),
        (Quorum(3, 2, 1), 1, Quorum(1, 1, 1)),
    ],
)
def test_a_smaller_ledger_keeps_the_ack_quorum(
    wanted: Quorum, usable: int, smaller: Quorum | None
) -> None:
    """LS13."""
    assert degraded_quorum(wanted, usable) == smaller
    if smaller is not None:
        assert degraded_to(wanted, smaller) == usable


def test_a_ledger_as_wanted_is_not_degraded() -> None:
    """LS13. One that is larger, since the settings were changed meanwhile, is none either."""
    assert degraded_to(Quorum(3, 3, 2), Quorum(3, 3, 2)) == 0
    assert degraded_to(Quorum(3, 3, 2), Quorum(5, 5, 3)) == 0

"""Simulated code uses only the simulator's clock, randomness, threads and ordering.

The lint itself is tested in tests/unit/simulation/kernel/test_banned.py.
"""

import pytest

from tests.architecture.source import ROOT, Module, hand_written
from tests.simulation.kernel.banned import banned_calls

SIMULATED = [module for module in hand_written() if not module.is_runtime]


@pytest.mark.parametrize("module", SIMULATED, ids=lambda m: str(m.path))
def test_cores_and_shells_make_no_banned_call(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert banned_calls(str(module.path)) == []

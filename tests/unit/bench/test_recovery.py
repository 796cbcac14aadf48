"""The benchmark of recovery runs and produces its figures, at a minimal size."""

from math import isfinite

import pytest

from tests.bench import recovery


@pytest.mark.parametrize("part", ["copies", "index", "million"])
def test_every_figure_is_measured(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_REST_S", 0.0)
    monkeypatch.setattr(recovery, "_ENTRIES", recovery._ENTRIES[:1])
    found = list(recovery.figures(1, recovery.SMALL, only=[part]))
    assert found
    assert all(isfinite(figure.value) for figure in found)
    assert len({figure.name for figure in found}) == len(found)

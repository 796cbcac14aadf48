"""The benchmark of restarts runs and produces its figures, at a minimal size."""

from math import isfinite

from tests.bench import restart


def test_every_figure_is_measured() -> None:
    figures = list(restart.figures(1, restart.SMALL))
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(isfinite(figure.value) for figure in figures)
    assert any("entry logs: opening" in figure.name for figure in figures)

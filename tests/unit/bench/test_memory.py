"""The benchmark of memory runs and produces its figures, at a minimal size."""

from math import isfinite

from tests.bench import memory


def test_every_figure_is_measured() -> None:
    figures = list(memory.figures(1, memory.SMALL))
    assert len({figure.name for figure in figures}) == len(figures)
    assert all(isfinite(figure.value) for figure in figures)
    assert figures[0].unit == "MiB"
    assert 10 < figures[0].value < 1024

"""Plots of a benchmark: `--plot FOLDER` draws `throughput` and `latency`, as PNG and as SVG.

Figures are kept by name in `FOLDER/figures.json`, so that a benchmark that runs in parts gets
complete plots. `draw.py` draws them in its own virtual environment.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.bench import Figure
from tests.bench.load.jobs import SHARES
from tests.bench.logs_peers import CannotBeHad, fetch, python_with

_MATPLOTLIB: Final = "matplotlib==3.11.2"
_SIDE: Final = ": "  # Between what was measured and whose it is.

Panel = dict[str, Any]


def plot(figures: Iterable[Figure], folder: Path) -> None:
    """Saves the figures, and draws them or reports why it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "figures.json"
    rows: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    rows |= {figure.name: asdict(figure) for figure in figures}
    kept.write_text(json.dumps(rows, indent=1))
    panels = {"bars": bars(rows.values()), "curves": curves(rows.values())}
    drawing = folder / "panels.json"
    drawing.write_text(json.dumps(panels))
    try:
        python = python_with("plots", _MATPLOTLIB)
        fetch([python, "-m", "tests.bench.draw", folder.resolve()])
    except CannotBeHad as reason:
        print(f"blocked: plots: {reason}", file=sys.stderr)
    finally:
        drawing.unlink()


def bars(rows: Iterable[Mapping[str, Any]]) -> list[Panel]:
    """A panel for each rate that several sides have."""
    found: dict[str, Panel] = {}
    for row in rows:
        what, _, side = row["name"].rpartition(_SIDE)
        if what and row["unit"].endswith("/s"):
            panel = found.setdefault(what, {"title": what, "unit": row["unit"], "sides": {}})
            panel["sides"][side] = row["value"]
    return [panel for panel in found.values() if len(panel["sides"]) > 1]


def curves(rows: Iterable[Mapping[str, Any]]) -> list[Panel]:
    """A panel for each latency: whose it is, and the points (share, ms)."""
    found: dict[str, Panel] = {}
    for row in rows:
        if row["spread"]:
            what, _, side = row["name"].rpartition(_SIDE)
            title = what.removesuffix(f"{_SIDE}p50")
            panel = found.setdefault(title, {"title": title, "unit": row["unit"], "sides": {}})
            panel["sides"][side] = _points(row["spread"])
    return list(found.values())


def _points(spread: Sequence[float]) -> list[tuple[float, float]]:
    """The points up to the slowest.

    A slowest value that stands for several shares is drawn once.
    """
    known = spread.index(spread[-1]) + 1
    return list(zip(SHARES[:known], spread[:known], strict=True))

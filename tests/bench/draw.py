"""Draws the panels of `plots.py`. It runs in an environment with matplotlib and without Rollbook.

    python -m tests.bench.draw FOLDER

Rates are bars; the longest is the best. Latencies are cumulative curves on a scale of nines, which
shows the tail. A side keeps its colour; unsynced results are pale and hatched or dotted.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt  # The kind of canvas comes first.

Panel = dict[str, Any]

_COLOURS: Final = {
    "ours": "#1b6ca8",
    "Kafka": "#d1495b",
    "Kafka by aiokafka": "#edae49",
    "JetStream": "#3a7d44",
}
_OTHERS: Final = "#8d8d8d"
_UNSYNCED: Final = ", not synced"
_SHARES: Final = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
_COLUMNS: Final = 2
_PANEL_INCHES: Final = (6.4, 3.2)
_FORMATS: Final = ("png", "svg")


def draw(folder: Path) -> None:
    panels = json.loads((folder / "panels.json").read_text())
    mpl.rcParams["svg.hashsalt"] = "rollbook"  # The same figures give the same file.
    mpl.rcParams["svg.fonttype"] = "none"  # Text stays text: a tenth of the bytes of drawn letters.
    for name, kind, found in (
        ("throughput", _draw_bars, panels["bars"]),
        ("latency", _draw_curves, panels["curves"]),
    ):
        if found:
            _draw_page(folder / name, kind, found)


def _draw_page(path: Path, kind: Any, panels: list[Panel]) -> None:
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width, height = _PANEL_INCHES
    page, grid = plt.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        squeeze=False,
        layout="constrained",
    )
    places = list(grid.flat)
    for place, panel in zip(places, panels, strict=False):
        place.set_title(panel["title"], fontsize=10, loc="left")
        place.spines[["top", "right"]].set_visible(False)
        kind(place, panel)
    for place in places[len(panels) :]:
        place.set_axis_off()
    for extension in _FORMATS:
        metadata = {"Date": None} if extension == "svg" else None
        page.savefig(path.with_suffix(f".{extension}"), dpi=150, metadata=metadata)
    plt.close(page)


def _draw_bars(place: Any, panel: Panel) -> None:
    names = list(panel["sides"])
    values = [panel["sides"][name] for name in names]
    drawn = place.barh(names, values, color=[_colour(name) for name in names], height=0.7)
    for bar, name in zip(drawn, names, strict=True):
        if name.endswith(_UNSYNCED):
            bar.set(alpha=0.45, hatch="//")
    place.bar_label(drawn, labels=[f" {_shown(value)}" for value in values], fontsize=8)
    place.invert_yaxis()
    place.margins(x=0.15)
    place.set_xlabel(panel["unit"], fontsize=8)
    place.xaxis.set_major_formatter(lambda value, _: _shown(value))
    place.locator_params(axis="x", nbins=5)
    place.tick_params(labelsize=8)


def _draw_curves(place: Any, panel: Panel) -> None:
    for name, points in panel["sides"].items():
        shares, values = zip(*points, strict=True)
        style = ":" if name.endswith(_UNSYNCED) else "-"
        heights = [_nines(share) for share in shares]
        place.plot(values, heights, style, color=_colour(name), label=name, linewidth=1.6)
    place.set_xscale("log")
    place.xaxis.set_major_formatter(lambda value, _: _shown(value))
    place.set_yticks([_nines(share) for share in _SHARES], [f"{share:.4g}" for share in _SHARES])
    place.set_xlabel(f"{panel['unit']} or less", fontsize=8)
    place.set_ylabel("share of all", fontsize=8)
    place.grid(visible=True, which="both", linewidth=0.3)
    place.tick_params(labelsize=8)
    place.legend(fontsize=7, frameon=False, loc="upper left")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _nines(share: float) -> float:
    return -math.log10(1 - share)


def _colour(name: str) -> str:
    return _COLOURS.get(name.removesuffix(_UNSYNCED), _OTHERS)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))

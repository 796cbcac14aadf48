"""Prints facts as tables and lines for people, or as JSON for programs.

For people, sizes (`…bytes`) are printed as `256 MiB`, and durations (`…_s`) as `30d`, under a name without `_s`.
JSON has plain numbers.

For people, control characters in names, values and errors are escaped here for all commands. JSON escapes them, too.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from rollbook.proto.printable import harmless

_FORMATS: Final = ("table", "json", "ndjson")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_THEN_MS: Final = 10**12  # A wall time in 2001; smaller values are durations.
_SIZE: Final = re.compile("(?:.*_)?bytes(?:_max)?")
_DURATION: Final = re.compile("(?!.*_per_s$).*_s")
_KIB: Final = 1024
_UNITS_OF_SIZE: Final = ("KiB", "MiB", "GiB", "TiB")
_UNITS_OF_TIME: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))

F = TypeVar("F", bound=Callable[..., Any])


def _output_option(help_text: str, *more: str) -> Callable[[F], F]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice((*_FORMATS, *more)),
        default="table",
        show_default=True,
        help=help_text,
    )


output_option: Final = _output_option(
    "`table` is for people, `json` and `ndjson` are for programs."
)
bare_output_option: Final = _output_option(
    "`table` is for people, `json` and `ndjson` are for programs; `raw` prints one value only.",
    "raw",
)
list_output_option: Final = _output_option(  # The option for commands that list things with names.
    "`table` is for people, `json` and `ndjson` are for programs; `wide` shows all columns, `name` and `raw` print one "
    "name per line.",
    "raw",
    "wide",
    "name",
)


def examples(*lines: str) -> str:
    """Returns the examples in the form that `--help` shows at its end."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def show_facts(facts: Mapping[str, Any], output: str) -> None:
    if output == "table":
        click.echo(as_lines(facts))
    else:
        click.echo(json.dumps(facts, indent=2 if output == "json" else None))


def show_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], output: str) -> None:
    """Prints rows. `ndjson` prints each row as it arrives; other formats wait for all rows."""
    if output == "ndjson":
        for row in rows:
            click.echo(json.dumps(row))
    elif output == "json":
        click.echo(json.dumps(list(rows), indent=2))
    else:
        click.echo(as_table(columns, list(rows)))


def tell(facts: Mapping[str, Any], output: str, bare: str) -> None:
    """Prints facts; `bare` names the only fact that `raw` prints."""
    if output == "raw":
        fact = "-" if facts[bare] is None else str(facts[bare])
        click.echo(harmless(fact) if sys.stdout.isatty() else fact)
    else:
        show_facts(facts, output)


def tell_rows(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    output: str,
    bare: str,
    wide: Sequence[str] = (),
) -> None:
    """Prints rows. `bare` is the column of names; `wide` are columns that only `-o wide` shows."""
    if output in ("raw", "name"):
        as_shown = harmless if sys.stdout.isatty() else str
        # Bypasses click, which would flush after each row: there may be millions of rows.
        for row in rows:
            sys.stdout.write(f"{as_shown(str(row[bare]))}\n")
        sys.stdout.flush()
    else:
        show_rows((*columns, *wide) if output == "wide" else columns, rows, output)


def as_lines(facts: Mapping[str, Any]) -> str:
    lines = dict(_flat(facts))
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {text}" for name, text in lines.items())


def _flat(facts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        name = within + _HUMP.sub(r"_\1", name).lower()  # BookKeeper's names are in camelCase.
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        elif name.endswith("_ms") and isinstance(value, int) and (not value or value >= _THEN_MS):
            yield name.removesuffix("_ms"), _time(value)
        else:
            yield harmless(_title(name)), _with_unit(name, value)


def as_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [[_title(column).upper() for column in columns]]
    cells += [[_with_unit(column, row[column]) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def shown(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, dict):
        return (
            " ".join(f"{harmless(str(name))}={shown(each)}" for name, each in value.items()) or "-"
        )
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    return harmless(str(value))


def _title(name: str) -> str:
    """Returns the title of a line or a column, without the unit that the value shows."""
    return name.removesuffix("_s") if _DURATION.fullmatch(name) else name


def _with_unit(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return shown(value)
    if _SIZE.fullmatch(name):
        return size_of(value)
    return duration_of(value) if _DURATION.fullmatch(name) else shown(value)


def size_of(count: float) -> str:
    """Returns a size such as `256 MiB` or `1.4 GiB`. Sizes below 1 KiB have no unit."""
    if count < _KIB:
        return shown(count)
    power = 0
    while count >= _KIB and power < len(_UNITS_OF_SIZE):
        count /= _KIB
        power += 1
    return f"{count:.1f}".removesuffix(".0") + f" {_UNITS_OF_SIZE[power - 1]}"


def duration_of(seconds: float) -> str:
    """Returns a duration such as `30d`, `1h 30m` or `0.25s`. A minute or more is rounded to whole seconds."""
    if seconds < _UNITS_OF_TIME[-2][1]:
        return f"{shown(seconds)}s"
    left, parts = round(seconds), []
    for unit, size in _UNITS_OF_TIME:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def _time(wall_ms: int) -> str:
    return (
        f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if wall_ms else "never"
    )


def time_of(wall_us: int) -> str:
    """Returns a time in RFC 3339 format, in UTC, with milliseconds."""
    if not wall_us:
        return "-"
    return f"{datetime.fromtimestamp(wall_us / 1e6, UTC).isoformat('T', 'milliseconds')[:23]}Z"

"""How commands show facts: tables and lines for people, JSON for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

FORMATS: Final = ("table", "json", "ndjson")

output_option: Final = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)


def examples(*lines: str) -> str:
    """The end of a `--help`."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def show_facts(facts: Mapping[str, Any], output: str) -> None:
    if output == "table":
        click.echo(as_lines(facts))
    else:
        click.echo(json.dumps(facts, indent=2 if output == "json" else None))


def show_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], output: str) -> None:
    """`ndjson` shows each row as it comes, the others wait for all."""
    if output == "ndjson":
        for row in rows:
            click.echo(json.dumps(row))
    elif output == "json":
        click.echo(json.dumps(list(rows), indent=2))
    else:
        click.echo(as_table(columns, list(rows)))


def as_lines(facts: Mapping[str, Any]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"{name:{width}}  {shown(value)}" for name, value in facts.items())


def as_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [[column.upper() for column in columns]]
    cells += [[shown(row[column]) for column in columns] for row in rows]
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
    if isinstance(value, dict):
        return " ".join(f"{name}={shown(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)

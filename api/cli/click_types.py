"""Types of options and arguments: an error names the invalid value and what is accepted."""

import math
from typing import Any

import click


class AnyBytes(click.types.StringParamType):
    """The type of arguments that are parts of records. Only these may have bytes that are not UTF-8."""


class WholeNumber(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value} is not a whole number{_within(self.min, self.max)}", param, ctx)


class Number(click.FloatRange):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = math.nan
        if not math.isfinite(number):
            limits = _within(self.min, self.max, is_open=self.min_open)
            self.fail(f"{value} is not a number{limits}", param, ctx)
        return number


def _within(first: float | None, last: float | None, *, is_open: bool = False) -> str:
    if first is not None and last is not None:
        return f" from {first} to {last}"
    if first is not None:
        return f" above {first}" if is_open else f" from {first} on"
    return "" if last is None else f" up to {last}"

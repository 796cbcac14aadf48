"""Groups of commands. A group knows the names of its commands, and imports a command only when it is called, to
keep `--help` quick.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import click


class LazyCommand(NamedTuple):
    """The module and the attribute of a command, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


_ALIASES: Final = {"list": "ls", "info": "show", "describe": "show", "delete": "rm", "remove": "rm"}


class AliasGroup(click.Group):
    """A group that also accepts command names of other tools. `--help` does not show these names."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in _ALIASES:
            return super().get_command(ctx, cmd_name)
        return super().get_command(ctx, _ALIASES[cmd_name])


class LazyGroup(AliasGroup):
    def __init__(self, *arguments: Any, places: Mapping[str, LazyCommand], **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(place.module)
        return cast(click.Command, getattr(module, place.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, place.help) for name, place in self.places.items()]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            assert command is not None
            rows.append((name, command.get_short_help_str(limit=80)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

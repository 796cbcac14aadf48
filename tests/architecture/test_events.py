"""The events that servers log match the tables in their DESIGN.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.source import ROOT, Module, modules

_ROW: Final = re.compile(r"^\| `([a-z_]+)` \| (debug|info|warning|error) \| (.+) \|$", re.MULTILINE)
_LEVELS: Final = ("info", "warning", "error")
_ERROR_TOO: Final = "exception"  # An error, with its traceback.
_OF_LOGS: Final = ("api/access", "api/grpc", "api/cli/server/peer_credentials", "logservice")
_OF_LOGS_OVER_HTTP: Final = ("api/grpc/peer_channels.py", "api/rest/record_range_response.py")
_ELSEWHERE: Final = (
    "api/cli/server/bookie.py",
    "api/cli/server/bookie_settings.py",
    "proto/cluster/registration.py",
    "api/access/authenticator.py",
    "api/access/audit.py",
)

# Events that are about more than one ledger.
_OF_ALL: Final = ("ledger_index_waits", "ledger_index_swept")
_AND_OF_CLUSTER: Final = {
    "ledger": ("proto/cluster/ledger_nodes.py", "proto/cluster/bookie_watcher.py"),
    "recovery": ("proto/cluster/election.py", "proto/cluster/bookie_lifecycle_nodes.py"),
}


def _logging() -> list[Module]:
    found = [*modules("bookie"), *modules("api"), *modules("proto")]
    return [
        each
        for each in found
        if each.package == "bookie"
        or (each.path.parts[:2] == ("api", "rest") and str(each.path) not in _OF_LOGS_OVER_HTTP)
        or str(each.path) in _ELSEWHERE
    ]


def _events(module: Module) -> Iterator[tuple[str, str]]:
    """Name and level; the level is empty if it is chosen at run time."""
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id="logger"), attr=attr) if attr in _LEVELS:
                level = attr
            case ast.Attribute(value=ast.Name(id="logger"), attr=attr) if attr == _ERROR_TOO:
                level = "error"
            # A logger bound to a log.
            case ast.Attribute(value=ast.Attribute(attr="_log"), attr=attr):
                level = attr
            case ast.Name(id="say"):
                level = ""
            case _:
                continue
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value, level


def test_bookie_design_lists_all_events_with_levels() -> None:
    logged = {event for module in _logging() for event in _events(module)}
    table = _ROW.findall((ROOT / "bookie" / "DESIGN.md").read_text())
    levels = {name: level for name, level, _ in table}
    assert len(levels) == len(table), "an event has two rows"
    names = {name for name, _ in logged}
    assert names - set(levels) == set(), "bookie/DESIGN.md lacks a row for these"
    assert set(levels) - names == set(), "no code logs these events: delete their rows"
    wrong = {(name, level) for name, level in logged if level and levels[name] != level}
    assert not wrong, "bookie/DESIGN.md gives these another level"


@pytest.mark.parametrize("package", _AND_OF_CLUSTER)
def test_package_design_lists_all_events_with_levels(package: str) -> None:
    """The table includes the events of the parts of `proto/cluster` that the package runs."""
    paths = _AND_OF_CLUSTER[package]
    shared = [each for each in modules("proto") if str(each.path) in paths]
    assert len(shared) == len(paths)
    logged = {event for each in [*modules(package), *shared] for event in _events(each)}
    table = _ROW.findall((ROOT / package / "DESIGN.md").read_text())
    levels = {name: level for name, level, _ in table}
    assert len(levels) == len(table), "an event has two rows"
    names = {name for name, _ in logged}
    assert names - set(levels) == set(), f"{package}/DESIGN.md lacks a row for these"
    assert set(levels) - names == set(), "no code logs these events: delete their rows"
    wrong = {(name, level) for name, level in logged if level and levels[name] != level}
    assert not wrong, f"{package}/DESIGN.md gives these another level"


def test_ledger_events_carry_the_ledger_id() -> None:
    """Operators filter the logs of clients, bookies and recovery by ledger id."""
    found = 0
    for module in modules("proto", "ledger", "bookie", "recovery"):
        for node in module.nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=attr),
                    args=[ast.Constant(value=str() as event)],
                ) if attr in _LEVELS and event.startswith("ledger_") and event not in _OF_ALL:
                    names = {each.arg for each in node.keywords}
                    assert "ledger_id" in names, f"{module.path}: {event} lacks ledger_id"
                    found += 1
    assert found > 10


def _logging_of_logs() -> list[Module]:
    return [
        each
        for each in [*modules("logservice"), *modules("api")]
        if str(each.path).startswith(_OF_LOGS) or str(each.path) in _OF_LOGS_OVER_HTTP
    ]


def test_logservice_design_lists_all_events_with_levels() -> None:
    logged = {event for module in _logging_of_logs() for event in _events(module)}
    table = _ROW.findall((ROOT / "logservice" / "DESIGN.md").read_text())
    assert {(name, level) for name, level, _ in table} == logged | {("reader_lost_owner", "debug")}
    assert len({name for name, _, _ in table}) == len(table), "an event has two rows"


def test_log_events_carry_the_log_name() -> None:
    """Operators filter a server's log by the name of a log."""
    for module in _logging_of_logs():
        for node in module.nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=attr),
                    args=[ast.Constant(value=str() as event)],
                ) if attr in _LEVELS and event.startswith(("log_", "segment_")):
                    names = {each.arg for each in node.keywords}
                    is_of_server = event.startswith("log_server")
                    assert is_of_server or "log" in names, f"{module.path}: {event} lacks log"


@pytest.mark.parametrize("module", _logging(), ids=lambda m: str(m.path))
def test_events_are_constant_names(module: Module) -> None:
    """Variable parts are keywords, so that a log can be searched for an event's name."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=attr), args=args):
                if attr in (*_LEVELS, "debug", "critical", "exception"):
                    assert len(args) == 1
                    assert attr in _LEVELS, f"{module.path}:{node.lineno}: level {attr}"
                    assert isinstance(args[0], ast.Constant | ast.IfExp), node.lineno


def test_the_search_finds_events() -> None:
    code = "logger.info('a', x=1)\nlogger.warning('b' if y else 'c')\nsay('d')\nprint('e')"
    assert set(_events(Module(Path("events.py"), code))) == {
        ("a", "info"),
        ("b", "warning"),
        ("c", "warning"),
        ("d", ""),
    }
    assert str(Path(_ELSEWHERE[0])).endswith("server/bookie.py")

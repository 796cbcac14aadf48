"""Adds the flags of a command for a bookie to the commands that its errors recommend."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from rollbook.bookie.core.suggested_commands import FORMAT, INIT, REJOIN, WRITE_OFF
from rollbook.proto.errors import RollbookError


@contextmanager
def advising(flags: Mapping[str, Any]) -> Iterator[None]:
    """Adds the flags to the commands that errors recommend, so that users can type these commands unchanged."""
    try:
        yield
    except RollbookError as error:
        error.next_step = with_flags(error.next_step, flags)
        raise


def with_flags(advice: str, flags: Mapping[str, Any]) -> str:
    words = [
        word
        for name, option in _FLAG_NAMES.items()
        for value in _values(flags.get(name))
        for word in (option, value)
    ]
    for command in (INIT, FORMAT, REJOIN, WRITE_OFF):
        if command in advice:
            return advice.replace(command, shlex.join([*command.split(), *words]))
    return advice


_FLAG_NAMES: Final = {
    "config_file": "--config",
    "metadata": "--metadata",
    "bookie_id": "--bookie-id",
    "listen": "--listen",
    "advertise": "--advertise",
    "journal_dir": "--journal-dir",
    "ledger_dir": "--ledger-dir",
}


def _values(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)

"""Sets up structlog, once per process: events are JSON lines for machines or coloured lines for people."""

import logging
import os
import sys
from typing import Any, Final, TextIO, cast

import structlog

from rollbook.proto.errors import BadConfig
from rollbook.proto.printable import harmless

LEVELS: Final = ("debug", "info", "warning", "error")
# Values under these names are secrets, so stars are logged instead. Only the name shows that a
# value is a secret.
_SECRET_NAMES: Final = frozenset(
    ("password", "token", "secret", "key", "master_key", "mac_key", "authorization", "credential")
)

_OF_LINES: Final = frozenset(("exception", "stack"))

_now: Final = {"level": "info"}


def configure_logs(
    *, level: str = "info", as_json: bool = True, stream: TextIO | None = None
) -> None:
    """Call this before the first logger is used. Later calls replace the settings."""
    assert level in LEVELS
    stream = stream or sys.stderr
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=colours)
    )
    escape: tuple[structlog.typing.Processor, ...] = () if as_json else (_escape,)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _redact,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            *escape,
            render,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Lenient(stream))),
        cache_logger_on_first_use=False,
    )
    set_level(level)


def check_log_level(level: str) -> None:
    if level not in LEVELS:
        raise BadConfig(f"log_level must be {', '.join(LEVELS)}", settings=("log_level",))


def log_as_a_library() -> None:
    """Sends events to Python's own `logging`, unless the program has configured structlog.

    Loggers are named after their modules, so that the program can decide which events it shows. By
    default it shows warnings, on standard error.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _redact,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def unfiltered_logger() -> Any:
    """Returns a logger like that of `structlog.get_logger()`, but one that logs at every level."""
    everything = structlog.make_filtering_bound_logger(logging.NOTSET)
    return structlog.wrap_logger(None, wrapper_class=everything)


def level_now() -> str:
    return _now["level"]


def set_level(level: str) -> None:
    """Sets the level of every logger that is requested from now on. Other settings stay as they are."""
    assert level in LEVELS
    _now["level"] = level
    number = logging.getLevelName(level.upper())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


class _Lenient:
    """A stream for a log. If the log cannot be written, for example because its disk is full, the
    server goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            pass


def _escape(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escapes an event for a terminal, since names and messages from other parties may contain
    terminal commands. The lines of a traceback are kept.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = harmless(value, keeps="\n\t" if name in _OF_LINES else "")
    return event


def _redact(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    for name in event:
        if name in _SECRET_NAMES:
            event[name] = "***"
    return event

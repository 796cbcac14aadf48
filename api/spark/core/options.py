"""The options of the data source `rollbook`. One table says for each option which values are valid.

Spark passes options as text, and their names in any case. An option that is unknown, contradicts another one, or
has an invalid value is refused with an error that shows its name, its value and the valid values.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from rollbook.logservice.ids import LogName, Offset, parse_cursor_name
from rollbook.logservice.position_syntax import (
    AtOffset,
    AtTime,
    Earliest,
    Latest,
    Position,
    parse_age_us,
    parse_position,
)
from rollbook.proto.errors import BadConfig, InvalidRequest

ENDPOINT: Final = "endpoint"
COLUMNS: Final = ("log", "offset", "timestamp", "key", "value")
ON_DEMAND: Final = ("event_time", "headers", "writer_epoch")
_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_PARTITION_BYTES_MAX: Final = 128 * _MIB
_EARLIEST_OF_KAFKA: Final = -2
_LATEST_OF_KAFKA: Final = -1
_SELECTS: Final = ("log", "logs", "prefix", "logPattern")
_OF_KAFKA: Final = {"subscribe": "logs", "subscribePattern": "logPattern", "topic": "log"}
_INSTEAD: Final = {
    "kafka.bootstrap.servers": "endpoint",
    "assign": "logs",
    "kafka.group.id": "cursor",
    "groupidprefix": "cursor",
    "group.id": "cursor",
    "startingoffsetsbytimestampstrategy": "timestampNotFound",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "kafkaconsumer.polltimeoutms": "fetchTimeout",
    "fetchoffset.numretries": "retries",
    "fetchoffset.retryintervalms": "retryDelay",
    "includeheaders": "includeHeaders",
    "mode": "columns",
    "token": "tokenFile",
    "password": "tokenFile",
}


class Option(NamedTuple):
    name: str
    accepts: str  # A description of the valid values.
    parse: Callable[[str], Any]
    reads: str = ""  # The reads that accept it: `b` batch reads, `s` streams.
    writes: bool = False


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value.strip()


def _flag(value: str) -> bool:
    return {"true": True, "false": False}[value.strip().lower()]


def _whole(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value.replace("_", ""))
        if number < least:
            raise ValueError
        return number

    return parse


_UNITS: Final = {"": 1, "b": 1, "k": _KIB, "m": _MIB, "g": _KIB * _MIB}


def size_of(value: str) -> int:
    found = re.fullmatch(r"(\d+) *([kmg]?)(i?b)?", value.strip().lower())
    if not found or not int(found[1]):
        raise ValueError
    return int(found[1]) * _UNITS[found[2]]


def _seconds(value: str) -> float:
    text = value.strip()
    return int(text) / 1000 if text.isdecimal() else parse_age_us(text.replace(" ", "")) / 1_000_000


def _log(value: str) -> str:
    return str(LogName.parse(_text(value)))


def _logs(value: str) -> tuple[str, ...]:
    names = [_log(each) for each in value.split(",") if each.strip()]
    if not names:
        raise ValueError
    return tuple(dict.fromkeys(names))


def _prefix(value: str) -> str:
    text = _text(value)
    return text if "/" in text else f"default/{text}"


def _pattern(value: str) -> str:
    re.compile(_text(value))
    return value.strip()


def _time(value: str | int) -> Position:
    text = str(value).strip()
    if text.isdecimal():
        return AtTime(int(text) * 1000)
    return parse_position(f"ts:{text}")


class StartPositions(NamedTuple):
    """The positions of the named logs, and of all others, at which a read starts or ends."""

    others: Position
    named: tuple[tuple[str, Position], ...] = ()

    def of(self, log: str) -> Position:
        return dict(self.named).get(log, self.others)


def _place(number: Any) -> Position:
    if isinstance(number, str):
        return parse_position(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < _EARLIEST_OF_KAFKA:
        raise ValueError
    if number == _EARLIEST_OF_KAFKA:
        return Earliest()
    return Latest() if number == _LATEST_OF_KAFKA else AtOffset(Offset(number))


def _places(value: str) -> StartPositions:
    text = value.strip()
    if text.startswith("{"):
        found = json.loads(text)
        named = ((_log(name), _place(number)) for name, number in found.items())
        return StartPositions(Earliest(), tuple(sorted(named, key=lambda each: each[0])))
    return StartPositions(parse_position(text))


def _times(value: str) -> StartPositions:
    text = value.strip()
    if text.startswith("{"):
        found = json.loads(text)
        named = ((_log(name), _time(each)) for name, each in found.items())
        return StartPositions(Earliest(), tuple(sorted(named, key=lambda each: each[0])))
    return StartPositions(_time(text))


def _columns(value: str) -> tuple[str, ...]:
    names = [each.strip() for each in value.split(",") if each.strip()]
    if not names or any(name not in (*COLUMNS, *ON_DEMAND) for name in names):
        raise ValueError
    if len(names) != len(dict.fromkeys(names)):
        raise ValueError
    return tuple(names)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip() not in choices:
            raise ValueError
        return value.strip()

    return parse


_TXN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}")


def _txn(value: str) -> str:
    if not _TXN.fullmatch(value.strip()):
        raise ValueError
    return value.strip()


_POSITIONS: Final = 'earliest, latest, ago:15m, an offset, or JSON such as {"orders": 42}, where -2 is earliest and -1 latest'
_TIMES: Final = "a time such as 2026-01-31T10:00:00Z, or milliseconds since 1970"
_DURATION: Final = "a length of time such as 500ms or 15m, or a number of milliseconds"
_SIZE: Final = "a size such as 128m or 1g, or bytes"
_WHOLE: Final = "a whole number above 0"
_FILE: Final = "a path, or the name of a file that SparkFiles has"
_BOOL: Final = "true or false"
_PATTERN: Final = "a regular expression that matches the whole of namespace/log"

OPTIONS: Final = (
    Option(ENDPOINT, "log://host:port, or log+tls://host:port,host:port", _text, "bs", True),
    Option("tokenFile", _FILE, _text, "bs", True),
    Option("authorities", _FILE, _text, "bs", True),
    Option("certificate", _FILE, _text, "bs", True),
    Option("key", _FILE, _text, "bs", True),
    Option("log", "the name of a log", _log, "bs", True),
    Option("logs", "names of logs, separated by commas", _logs, "bs"),
    Option("prefix", "the beginning of log names: namespace/prefix", _prefix, "bs"),
    Option("logPattern", _PATTERN, _pattern, "bs"),
    Option("startingOffsets", _POSITIONS, _places, "bs"),
    Option("startingTimestamp", _TIMES, _time, "bs"),
    Option("startingOffsetsByTimestamp", 'JSON such as {"orders": 1767225600000}', _times, "bs"),
    Option("timestampNotFound", "error or latest", _one_of("error", "latest"), "bs"),
    Option("endingOffsets", _POSITIONS, _places, "b"),
    Option("endingTimestamp", _TIMES, _time, "b"),
    Option("maxOffsetsPerTrigger", _WHOLE, _whole(1), "s"),
    Option("maxBytesPerTrigger", _SIZE, size_of, "s"),
    Option("minOffsetsPerTrigger", _WHOLE, _whole(1), "s"),
    Option("maxTriggerDelay", _DURATION, _seconds, "s"),
    Option("minPartitions", _WHOLE, _whole(1), "bs"),
    Option("maxRecordsPerPartition", _WHOLE, _whole(1), "bs"),
    Option("maxBytesPerPartition", _SIZE, size_of, "bs"),
    Option("failOnDataLoss", _BOOL, _flag, "bs"),
    Option("cursor", "the name of a cursor", lambda value: str(parse_cursor_name(value)), "s"),
    Option("protect", _BOOL, _flag, "s"),
    Option("includeHeaders", _BOOL, _flag, "bs"),
    Option("columns", f"some of {', '.join((*COLUMNS, *ON_DEMAND))}, each once", _columns, "bs"),
    Option("pollWait", _DURATION, _seconds, "s"),
    Option("retries", "a whole number from 0 on", _whole(0), "bs", True),
    Option("retryDelay", _DURATION, _seconds, "bs", True),
    Option("fetchTimeout", _DURATION, _seconds, "bs", True),
    Option("commit", "driver or task", _one_of("driver", "task"), "", True),
    Option("maxBatchBytes", _SIZE, size_of, "", True),
    Option("rowOrder", "plan or bytes", _one_of("plan", "bytes"), "", True),
    Option("txnId", "1 to 48 characters of a-z 0-9 . _ -", _txn, "", True),
    Option("compression", "none or zstd", _one_of("none", "zstd"), "", True),
)
_BY_NAME: Final = {each.name.lower(): each for each in OPTIONS}
_OF_A_TABLE: Final = (
    # The prefix that Spark adds to OPTIONS during CREATE TABLE; later it drops the options.
    "option."
)
# Options of Spark itself, which it also passes to sinks.
_OF_SPARK: Final = ("checkpointlocation", "path", "queryname")
LOST_BY_CREATE_TABLE: Final = (
    "this source was given no options: Spark does not pass the OPTIONS of CREATE TABLE … USING rollbook to sources "
    "that are written in Python"
)
USE_A_VIEW: Final = (
    "use CREATE TEMPORARY VIEW … USING rollbook OPTIONS (…); or give the table its columns, and give the options in "
    "each statement: CREATE TABLE t (value BINARY) USING rollbook, SELECT * FROM t WITH (endpoint = '…', log = '…')"
)


def values_of(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the checked values of options, by the names in the table. Raises `BadConfig`."""
    found: dict[str, Any] = {}
    given = {name.lower(): value for name, value in options.items()}
    is_table = any(name.startswith(_OF_A_TABLE) for name in given)
    if is_table or not given.keys() - dict.fromkeys(_OF_SPARK):
        raise BadConfig(LOST_BY_CREATE_TABLE, next_step=USE_A_VIEW)
    for name, value in given.items():
        if name in _OF_SPARK:
            continue
        alias = next((ours for theirs, ours in _OF_KAFKA.items() if theirs.lower() == name), name)
        option = _BY_NAME.get(alias.lower())
        if option is None:
            raise _unknown(name, value)
        if option.name in found:
            raise BadConfig(f"options {option.name} and {name} mean the same: give one of them")
        found[option.name] = _parsed(option, value)
    if ENDPOINT not in found:
        endpoint = environment.get("ROLLBOOK_ENDPOINT") or environment.get("ROLLBOOK_SERVER")
        if not endpoint:
            raise BadConfig(
                "option endpoint is missing",
                next_step="name the log servers: endpoint=log://host:7400, or ROLLBOOK_ENDPOINT on the driver",
            )
        found[ENDPOINT] = endpoint
    return found


def _parsed(option: Option, value: str) -> Any:
    try:
        return option.parse(value)
    except (ValueError, KeyError, AttributeError, re.error, InvalidRequest) as error:
        shown = option.name in ("tokenFile", "key") or f"={value[:80]!r}"
        why = f" ({error.message})" if isinstance(error, InvalidRequest) else ""
        raise BadConfig(
            f"option {option.name}{'' if shown is True else shown} is not {option.accepts}{why}",
            settings=(option.name,),
        ) from None


def _unknown(name: str, value: str) -> BadConfig:
    """Returns the error for an unknown option. The error does not show a value that may be a secret."""
    is_secret = any(word in name for word in ("token", "password", "secret", "jaas"))
    shown = f"option {name}" if is_secret else f"option {name}={value[:80]!r}"
    ours = _INSTEAD.get(name) or next(iter(get_close_matches(name, _BY_NAME, 1)), "")
    ours = _BY_NAME[ours.lower()].name if ours else ""
    is_kafkas = name.startswith("kafka.") or name in _INSTEAD
    known = f"known: {', '.join(sorted(each.name for each in OPTIONS))}"
    return BadConfig(
        f"{shown} is {'an option of Kafka, not of Rollbook' if is_kafkas else 'unknown'}",
        settings=(name,),
        next_step=f"use {ours}; {known}" if ours else known,
    )


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The settings for connecting to the servers. Secrets are in files, since options appear in plans and
    logs.
    """

    endpoint: str
    token_file: str = ""
    authorities: str = ""
    certificate: str = ""
    key: str = ""
    retries: int = 10
    retry_delay_s: float = 0.1
    fetch_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of logs by names, by prefix, or by pattern."""

    names: tuple[str, ...] = ()
    prefix: str = ""
    pattern: str = ""

    def covers(self, log: str) -> bool:
        if self.names:
            return log in self.names
        if self.pattern:
            return re.fullmatch(self.pattern, log) is not None
        return log.startswith(self.prefix)

    def __str__(self) -> str:
        if self.names:
            return ", ".join(self.names)
        return f"prefix {self.prefix}" if self.prefix else f"pattern {self.pattern}"


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """The limits that decide how a range is divided into tasks."""

    partitions_min: int = 0
    records_max: int = 0  # 0: no limit.
    bytes_max: int = _PARTITION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SourceOptions:
    access: ServerAccess
    selection: Selection
    # None: a stream starts at the tail, and a batch read at the head.
    starting: StartPositions | None
    finds_latest: bool  # True: a time after the last record means the tail.
    ending: StartPositions
    rows_max: int
    bytes_max: int
    rows_min: int
    delay_s_max: float
    split: SplitLimits
    fails_on_data_loss: bool
    cursor: str
    is_protected: bool
    columns: tuple[str, ...]
    poll_wait_s: float | None  # None: `idle_wait_s`.
    given: tuple[str, ...]  # The names of all options that were given.

    def require_for(self, kind: str) -> None:
        """Raises `BadConfig` if an option is only for the other kind of read. `kind` is `batch` or `stream`."""
        for name in self.given:
            if kind[0] not in _BY_NAME[name.lower()].reads:
                other = "streaming" if kind == "batch" else "batch"
                raise BadConfig(
                    f"option {name} is for {other} reads, and this is a {kind} read",
                    settings=(name,),
                    next_step="leave it out",
                )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    access: ServerAccess
    log: str  # The log to write to. Empty: the column `log` names it.
    commits_in_tasks: bool
    batch_bytes_max: int
    sorts_rows: bool
    txn_id: str
    compresses: bool


def access_of(values: Mapping[str, Any]) -> ServerAccess:
    if ("certificate" in values) != ("key" in values):
        missing = "key" if "certificate" in values else "certificate"
        raise BadConfig(f"option {missing} is missing: certificate and key must be given together")
    return ServerAccess(
        endpoint=values[ENDPOINT],
        token_file=values.get("tokenFile", ""),
        authorities=values.get("authorities", ""),
        certificate=values.get("certificate", ""),
        key=values.get("key", ""),
        retries=values.get("retries", 10),
        retry_delay_s=values.get("retryDelay", 0.1),
        fetch_timeout_s=values.get("fetchTimeout", 120.0),
    )


def source_options(values: Mapping[str, Any]) -> SourceOptions:
    """Returns the options of a read. Raises `BadConfig` if options contradict each other, or are not for reads."""
    _require_taken(values, "reads", lambda option: bool(option.reads))
    chosen = [name for name in _SELECTS if name in values]
    if len(chosen) != 1:
        given = (
            f"options {' and '.join(chosen)} contradict each other" if chosen else "no log is named"
        )
        raise BadConfig(given, next_step=f"give exactly one of {', '.join(_SELECTS)}")
    starts = [n for n in _STARTS if n in values]
    if len(starts) > 1:
        raise BadConfig(
            f"options {' and '.join(starts)} contradict each other", next_step="give one"
        )
    if "endingOffsets" in values and "endingTimestamp" in values:
        raise BadConfig("options endingOffsets and endingTimestamp contradict each other")
    if values.get("protect") and "cursor" not in values:
        raise BadConfig("option protect needs a cursor", next_step="name one: cursor=NAME")
    rows_min, rows_max = (
        values.get("minOffsetsPerTrigger", 0),
        values.get("maxOffsetsPerTrigger", 0),
    )
    if rows_max and rows_min > rows_max:
        raise BadConfig(f"minOffsetsPerTrigger={rows_min} is above maxOffsetsPerTrigger={rows_max}")
    columns = values.get("columns", COLUMNS)
    if values.get("includeHeaders") and "headers" not in columns:
        columns = (*columns, "headers")
    selection = Selection(
        names=values.get("logs", (values["log"],) if "log" in values else ()),
        prefix=values.get("prefix", ""),
        pattern=values.get("logPattern", ""),
    )
    return SourceOptions(
        access=access_of(values),
        selection=selection,
        starting=_start_of(values, starts),
        finds_latest=values.get("timestampNotFound", "error") == "latest",
        ending=_end_of(values),
        rows_max=rows_max,
        bytes_max=values.get("maxBytesPerTrigger", 0),
        rows_min=rows_min,
        delay_s_max=values.get("maxTriggerDelay", 900.0),
        split=SplitLimits(
            values.get("minPartitions", 0),
            values.get("maxRecordsPerPartition", 0),
            values.get("maxBytesPerPartition", _PARTITION_BYTES_MAX),
        ),
        fails_on_data_loss=values.get("failOnDataLoss", True),
        cursor=values.get("cursor", ""),
        is_protected=values.get("protect", False),
        columns=columns,
        poll_wait_s=values.get("pollWait"),
        given=tuple(name for name in values if name != ENDPOINT),
    )


_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def _start_of(values: Mapping[str, Any], starts: list[str]) -> StartPositions | None:
    if not starts:
        return None
    found = values[starts[0]]
    return found if isinstance(found, StartPositions) else StartPositions(found)


def _end_of(values: Mapping[str, Any]) -> StartPositions:
    if "endingTimestamp" in values:
        return StartPositions(values["endingTimestamp"])
    found: StartPositions = values.get("endingOffsets", StartPositions(Latest()))
    if isinstance(found.others, Earliest) and not found.named:
        raise BadConfig("endingOffsets=earliest would read nothing")
    return StartPositions(Latest(), found.named) if found.named else found


def sink_options(values: Mapping[str, Any], *, is_stream: bool = False) -> SinkOptions:
    """Returns the options of a write. A batch write may go into a view, which has read options, so they are ignored;
    in a stream they raise `BadConfig`.
    """
    if is_stream:
        _require_taken(values, "writes", lambda option: option.writes)
    return SinkOptions(
        access=access_of(values),
        log=values.get("log", ""),
        commits_in_tasks=values.get("commit", "driver") == "task",
        batch_bytes_max=values.get("maxBatchBytes", 256 * _MIB),
        sorts_rows=values.get("rowOrder", "plan") == "bytes",
        txn_id=values.get("txnId", ""),
        compresses=values.get("compression", "none") == "zstd",
    )


def _require_taken(values: Mapping[str, Any], what: str, takes: Callable[[Option], bool]) -> None:
    for name in values:
        if not takes(_BY_NAME[name.lower()]):
            taken = ", ".join(sorted(each.name for each in OPTIONS if takes(each)))
            raise BadConfig(
                f"option {name} is not one for {what}",
                settings=(name,),
                next_step=f"known for {what}: {taken}",
            )

"""Configuration: frozen dataclasses that are filled from defaults < TOML file < `ROLLBOOK_*` <
flags, where the later source wins.

    @dataclass(frozen=True)
    class JournalConfig:
        flush_age_ms_max: int = 2  # Larger: fewer flushes, later acks.

    load_config(JournalConfig, section="journal", file="rollbook.toml", environ=os.environ, flags={})

A field `flush_age_ms_max` of the section `journal` is `flush_age_ms_max` under `[journal]` in
the file and `ROLLBOOK_JOURNAL_FLUSH_AGE_MS_MAX` in the environment. An unknown key is an error,
whatever its source, and so is a value of the wrong type. A class checks its values in
`__post_init__`, and raises `BadConfig` with the names of the wrong ones.
"""

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rollbook.proto.errors import BadConfig

PREFIX: Final = "ROLLBOOK_"
CONFIG_BYTES_MAX: Final = 1024 * 1024

# The names of the variables that Kubernetes sets, and patterns of their values.
_OF_KUBERNETES: Final = (
    (re.compile(r"_SERVICE_HOST$|_PORT_\d+_(TCP|UDP|SCTP)_ADDR$"), re.compile(r"[0-9a-fA-F.:]+")),
    (
        re.compile(r"_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)_PORT$"),
        re.compile(r"\d+"),
    ),
    (
        re.compile(r"_PORT(_\d+_(TCP|UDP|SCTP))?$"),
        re.compile(r"(tcp|udp|sctp)://[0-9a-fA-F.:\[\]]+"),
    ),
    (re.compile(r"_PORT_\d+_(TCP|UDP|SCTP)_PROTO$"), re.compile(r"tcp|udp|sctp")),
)

C = TypeVar("C")

_TRUE: Final = frozenset(("1", "true", "yes", "on"))
_FALSE: Final = frozenset(("0", "false", "no", "off"))


def read_config_text(path: str) -> str:
    """Reads a file as UTF-8, or if it is not valid UTF-8, as Latin-1, which accepts any bytes."""
    content = _read(path)
    if b"\0" in content:
        raise BadConfig(f"{path} is not text")
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def read_config_file(path: str, sections: Collection[str]) -> dict[str, dict[str, Any]]:
    """Returns the tables of a file. A section that is not in `sections` is an error."""
    return parse_config(_read(path), path, sections)


def parse_config(data: bytes, path: str, sections: Collection[str]) -> dict[str, dict[str, Any]]:
    """Parses contents that were read before, as `read_config_file` does."""
    try:
        tables = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from error
    for name, table in tables.items():
        if name not in sections:
            raise BadConfig(f"{path}: unknown section [{name}]", next_step=_known(sections))
        if not isinstance(table, dict):
            raise BadConfig(f"{path}: `{name}` is outside a section", next_step=_known(sections))
    return tables


def load_config(
    shape: type[C],
    *,
    section: str,
    file: Mapping[str, Any] | None = None,
    file_path: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    said_by: Mapping[str, str] | None = None,
    check: Callable[[C], object] | None = None,
    sources: dict[str, str] | None = None,
) -> C:
    """Reads one section. Errors about values of `file` name `file_path`. A flag whose value is None
    was not given.

    `variables` maps fields to environment variables that are named like flags. `said_by`
    describes the origin of fields that come from a file in another form. `check` is called as well;
    it raises `BadConfig` for errors that only the caller can detect. `sources` is filled with the
    origin of each value that is not a default, by `section.name`.
    """
    place = f" in {file_path}" if file_path else ""
    found = _FoundValues(shape, section, variables or {})
    found.take_file(file or {}, place, said_by or {})
    found.take_environ(environ or {})
    found.take_flags(flags or {})
    found.require_all()
    with telling_who_said(found.said_by):
        loaded = shape(**found.values)
        if check is not None:
            check(loaded)
    if sources is not None:
        sources.update(found.sources(flags or {}))
    return loaded


class _FoundValues:
    """The values of a section, and their origins. A value that is taken later replaces an earlier one."""

    def __init__(self, shape: type[Any], section: str, variables: Mapping[str, str]) -> None:
        assert dataclasses.is_dataclass(shape)
        self.values: dict[str, Any] = {}
        self.said_by: dict[str, str] = {}
        self._section = section
        self._variables = variables
        self._prefix = f"{PREFIX}{section.upper()}_"
        self._fields = {field.name: field for field in dataclasses.fields(shape)}
        self._kinds = typing.get_type_hints(shape)

    def take_file(self, file: Mapping[str, Any], place: str, said_by: Mapping[str, str]) -> None:
        """Takes the values of the file `place`. `said_by` has the origins of values that come from
        other sources.
        """
        if place:
            self.said_by = {name: f"[{self._section}] {name}{place}" for name in file}
        self.said_by |= {name: source for name, source in said_by.items() if name in file}
        for name, value in file.items():
            if name not in self._fields:
                raise BadConfig(
                    f"[{self._section}]{place} has no setting `{name}`",
                    next_step=_known(self._fields),
                )
            where = self.said_by.get(name, f"[{self._section}] {name}")
            self.values[name] = _typed(value, self._kinds[name], where)

    def take_environ(self, environ: Mapping[str, str]) -> None:
        """Takes the variables of the section, then those that set single fields."""
        named = self._variables.values()
        for variable, text in environ.items():
            if not variable.startswith(self._prefix) or variable in named:
                continue
            name = variable.removeprefix(self._prefix).lower()
            if name in self._fields:
                self._take_variable(name, variable, text)
            elif not _is_of_kubernetes(variable, text):
                raise BadConfig(f"{variable} names no setting", next_step=_known(self._fields))
        for name, variable in self._variables.items():
            if variable in environ:
                self._take_variable(name, variable, environ[variable])

    def _take_variable(self, name: str, variable: str, text: str) -> None:
        self.values[name] = _parsed(text, self._kinds[name], variable)
        self.said_by[name] = variable

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        """Takes the values of flags that were given."""
        for name, value in flags.items():
            assert name in self._fields, name
            if value is not None:
                self.values[name] = value
                self.said_by.pop(name, None)

    def require_all(self) -> None:
        """Raises `BadConfig` if a field without a default has no value."""
        variables = self._variables
        missing = [
            name
            for name, field in self._fields.items()
            if name not in self.values
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        if not missing:
            return
        ways = [", ".join(variables.get(name, f"{self._prefix}{name.upper()}") for name in missing)]
        if all(name in variables for name in missing):
            ways.insert(0, ", ".join(_flag_of(variables[name]) for name in missing))
        raise BadConfig(
            f"[{self._section}] needs {', '.join(missing)}",
            next_step=f"set {' or '.join(ways)}, or name a file of settings with --config",
        )

    def sources(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """Returns the origins of the values, by `section.name`."""
        found: dict[str, str] = {}
        for name in self.values:
            is_flag = flags.get(name) is not None
            source = (
                _flag_of(self._variables.get(name, f"{PREFIX}{name}"))
                if is_flag
                else self.said_by.get(name)
            )
            found[f"{self._section}.{name}"] = source or f"[{self._section}] {name}"
        return found


def _is_of_kubernetes(variable: str, text: str) -> bool:
    """Returns whether Kubernetes set the variable: Service `rollbook-log` gives ROLLBOOK_LOG_SERVICE_HOST."""
    return any(name.search(variable) and value.fullmatch(text) for name, value in _OF_KUBERNETES)


def variables_of_flags(shape: type[Any]) -> dict[str, str]:
    """Returns variables without a section name, which work like flags: ROLLBOOK_LISTEN sets
    `listen` in any section.
    """
    return {each.name: f"{PREFIX}{each.name.upper()}" for each in dataclasses.fields(shape)}


def _flag_of(variable: str) -> str:
    return "--" + variable.removeprefix(PREFIX).lower().replace("_", "-")


@contextmanager
def telling_who_said(said_by: Mapping[str, str]) -> Iterator[None]:
    """Adds the origins of the values to a `BadConfig` about settings."""
    try:
        yield
    except BadConfig as error:
        sources = [said_by[name] for name in error.settings if name in said_by]
        if sources:
            error.message += f" ({', '.join(dict.fromkeys(sources))})"
        raise


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(
            f"cannot read the configuration {path}: {error.strerror}",
            next_step="name a file that is there and that you may read",
        ) from error
    if len(content) > CONFIG_BYTES_MAX:
        raise BadConfig(f"{path} is over {CONFIG_BYTES_MAX} bytes")
    return content


def _typed(value: Any, kind: Any, where: str) -> Any:
    """Checks a value from the file. TOML values already have types, so only these are compared."""
    for option in _options(kind):
        if option is float and type(value) is int:
            return float(value)
        if typing.get_origin(option) is tuple and isinstance(value, list):
            (item,) = {*typing.get_args(option)} - {Ellipsis}
            return tuple(_typed(each, item, where) for each in value)
        if type(value) is option:
            return value
    raise BadConfig(f"{where} is {value!r}, but should be {_name(kind)}")


def _parsed(text: str, kind: Any, where: str) -> Any:
    """Parses a value from the environment. Commas separate the elements of lists."""
    for option in _options(kind):
        if option is str:
            return text
        if option is bool and text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        if option in (int, float):
            try:
                return option(text)
            except ValueError:
                continue
        if typing.get_origin(option) is tuple:
            (item,) = {*typing.get_args(option)} - {Ellipsis}
            return tuple(_parsed(part.strip(), item, where) for part in text.split(",") if part)
    raise BadConfig(f"{where} is {text!r}, but should be {_name(kind)}")


def _options(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union without None: `int | None` gives int. None means that the key is absent."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(option for option in typing.get_args(kind) if option is not type(None))
    return (kind,)


def _name(kind: Any) -> str:
    return " or ".join(str(getattr(option, "__name__", option)) for option in _options(kind))


def _known(names: Collection[str]) -> str:
    return f"known: {', '.join(sorted(names))}"

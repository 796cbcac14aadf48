"""The actions of `rollbook access`. They read the access file like a server. A change replaces the whole file.

A server that reads the file during a change sees the old file or the new one. The last line of both, `# end`,
shows that the file is complete (AF1).
"""

import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from rollbook.api.access.core.access_file import (
    SECTION,
    Principal,
    Principals,
    digest_of,
    parse_principals,
)
from rollbook.api.access.core.file_stability import END
from rollbook.api.access.operator_token_file import require_own
from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.output import tell_rows, time_of
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.runtime.config import read_config_file

_TOKEN_BYTES: Final = 32
# The header of a TOML table.
_HEAD: Final = re.compile(r"^\[[^\n]*\][ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_TOKENS: Final = re.compile(r"^tokens[ \t]*=[ \t]*\[[ \t\n]*", re.MULTILINE)
_TOKENS_WHOLE: Final = re.compile(r"^tokens[ \t]*=[ \t]*\[[^\]]*\]", re.MULTILINE)
_LISTS: Final = ("read", "append", "admin", "deny")
_COLUMNS: Final = ("name", *_LISTS, "monitor", "operate", "expires")
_WIDE: Final = ("quotas", "tokens", "certificates")


def add(path: str, name: str, days: int | None, **what: Any) -> None:
    certificates: Sequence[str] = what.pop("certificate")
    if certificates and days:
        raise InvalidRequest("--days is for tokens: certificates contain their expiry date")
    if not any(what[each] for each in ("read", "append", "admin", "monitor", "operate")):
        raise InvalidRequest(
            f"{name} would have no rights",
            next_step="use --read, --append or --admin LOGS, --monitor or --operate",
        )
    secret = "" if certificates else new_token()
    table: dict[str, Any] = {each: list(what.pop(each)) for each in _LISTS}
    table |= {each: number for each, number in what.items() if number}
    table["certificates"] = list(certificates)
    table["tokens"] = [_hashed(secret, days)] if secret else []
    section = _as_toml(name, {key: value for key, value in table.items() if value})
    with _locked(path):
        there = read(path) if os.path.exists(path) else Principals([])
        if there.named(name) is not None:
            raise BadConfig(
                f"there is already a principal {name}", path=path, next_step="edit the file"
            )
        added = parse_principals(tomllib.loads(section)[SECTION])
        Principals([*there, *added])  # Raises an error if a name or token is taken.
        _replace(path, section)
    if secret:
        click.echo(secret)


def remove(path: str, names: Sequence[str], yes: bool) -> None:
    """Raises `BadConfig` and changes nothing if a principal or its section is missing."""
    there = read(path)
    for name in names:
        _require_known(path, there, name)
    ask_whether(f"remove {', '.join(names)} from {path}", yes)

    def without(text: str) -> str:
        for name in names:
            text = "".join(_parted(path, text, name)[::2])
        return text

    with _locked(path):
        _rewrite(path, read(path), without, names, tokens=None)


def rotate(path: str, name: str, days: int | None) -> None:
    """Adds a token. Earlier tokens stay valid until they are dropped."""
    principal = _require_known(path, read(path), name)
    if not principal.tokens and principal.certificates:
        raise BadConfig(f"{name} has certificates instead of tokens", path=path)
    secret = new_token()

    def with_token(text: str) -> str:
        before, section, after = _parted(path, text, name)
        entry = _value(_hashed(secret, days))
        changed, count = _TOKENS.subn(lambda found: f"{found[0]}{entry}, ", section, count=1)
        if count != 1:
            raise BadConfig(f"there is no line `tokens = […]` in the section of {name}", path=path,
                            next_step="run `rollbook access token`, and add the entry that it prints to the file")  # fmt: skip
        return f"{before}{changed}{after}"

    with _locked(path):
        there = read(path)
        count = len(_require_known(path, there, name).tokens)
        _rewrite(path, there, with_token, (name,), tokens=count + 1)
    click.echo(secret)


def drop_old_tokens(path: str, name: str) -> None:
    """Drops all tokens except the first one, where `rotate` puts the newest."""
    principal = _require_known(path, read(path), name)
    if len(principal.tokens) < 2:
        raise BadConfig(f"{name} has only one token", path=path, next_step="rotate it first")

    def with_one(text: str) -> str:
        before, section, after = _parted(path, text, name)
        tokens = tomllib.loads(section)[SECTION][name]["tokens"]
        (found,) = _TOKENS_WHOLE.findall(section)
        return f"{before}{section.replace(found, f'tokens = {_value(tokens[:1])}')}{after}"

    with _locked(path):
        _rewrite(path, read(path), with_one, (name,), tokens=1)


def _require_known(path: str, there: Principals, name: str) -> Principal:
    found = there.named(name)
    if found is None:
        raise BadConfig(
            f"there is no principal {name}", path=path, next_step="rollbook access ls --file FILE"
        )
    return found


def _parted(path: str, text: str, name: str) -> tuple[str, str, str]:
    """Returns the text before the principal's section, the section, and the text after it. Raises
    `BadConfig`.
    """
    heads = [*_HEAD.finditer(text)]
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        with suppress(tomllib.TOMLDecodeError, AttributeError):
            table = tomllib.loads(head[0])
            if list(table.get(SECTION, {})) == [name]:
                start = _start_of_comment(text, head.start())
                stop = _end_of_values(
                    text, head.end(), following.start() if following else len(text)
                )
                return text[:start], text[start:stop], text[stop:]
    raise BadConfig(
        f"found no table heading for {name} in the file", path=path, next_step="edit the file"
    )


def _start_of_comment(text: str, head: int) -> int:
    """Returns the start of the comment directly above the table's header, or the header's start without one."""
    start = head
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        if not text[line:start].lstrip().startswith("#"):
            break
        start = line
    return start


def _end_of_values(text: str, start: int, stop: int) -> int:
    """Returns the position after the section's last value, and after one empty line that follows it. Comments
    below that position belong to the next section.
    """
    end = start + text.startswith("\n", start)
    for line in re.finditer(r"[^\n]*\n?", text[start:stop]):
        if line[0].strip() and not line[0].lstrip().startswith("#"):
            end = start + line.end()
    return end + (end < stop and text.startswith("\n", end))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Locks the file's folder, because two commands at the same time would undo each other's changes."""
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl, and no server reads an access file there.
        yield
        return
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _rewrite(
    path: str,
    there: Principals,
    change: Callable[[str], str],
    names: Sequence[str],
    *,
    tokens: int | None,
) -> None:
    """Replaces the file with a copy in which only these principals have changed. Raises `BadConfig`.

    `tokens` is the number of tokens that each principal has afterwards; None: the principals are removed.
    """
    with open(path, encoding="utf-8") as file:
        text = change(file.read())
    found = parse_principals(tomllib.loads(text).get(SECTION, {}))
    counts = [len(each.tokens) for each in found if each.name in names]
    if counts != ([] if tokens is None else [tokens] * len(names)):
        raise BadConfig(
            f"the settings of {', '.join(names)} are in several places of the file",
            path=path,
            next_step="edit the file",
        )
    if [each for each in found if each.name not in names] != [
        each for each in there if each.name not in names
    ]:
        raise BadConfig("other principals would change, too", path=path, next_step="edit the file")
    _replace(path, "", text)


def _replace(path: str, section: str, text: str | None = None) -> None:
    """Replaces the file with one that has `text` (None: the present text) and `section`. The mode and the owner
    stay the same. Raises `OSError`.
    """
    path = os.path.realpath(path)
    there, found = "", None
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        there, found = file.read(), os.fstat(file.fileno())
    end = f"\n{END.decode()}\n"
    text = there if text is None else text
    text = f"\n{text.rstrip()}\n".removesuffix(end).strip("\n")
    new = f"{path}.{secrets.token_hex(4)}.new"
    try:
        with open(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(f"{text}\n{section}{end}".lstrip())
            if found is not None:
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise


def show(path: str, output: str) -> None:
    rows = [
        {
            "name": each.name,
            "read": list(each.grants.read),
            "append": list(each.grants.append),
            "admin": list(each.grants.admin),
            "deny": list(each.grants.deny),
            "monitor": each.grants.monitor,
            "operate": each.grants.operate,
            "quotas": {key: n for key, n in asdict(each.quotas).items() if n is not None},
            "tokens": len(each.tokens),
            "expires": [time_of(each.expires_us) for each in each.tokens if each.expires_us],
            "certificates": list(each.certificates),
        }
        for each in read(path)
    ]
    tell_rows(_COLUMNS, rows, output, "name", _WIDE)


def token() -> None:
    secret = new_token()
    click.echo(secret)
    click.echo(f'{{ sha256 = "{digest_of(secret)}" }}', err=True)


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def read(path: str) -> Principals:
    """Raises `BadConfig`."""
    require_own(path)
    return parse_principals(read_config_file(path, (SECTION,)).get(SECTION, {}))


def _hashed(secret: str, days: int | None) -> dict[str, Any]:
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days or 0)
    return {"sha256": digest_of(secret)} | ({"expires": expires} if days else {})


def _as_toml(name: str, table: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join([f"\n[{SECTION}.{json.dumps(name, ensure_ascii=False)}]", *lines, ""])


def _value(value: Any) -> str:
    match value:
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{key} = {_value(each)}' for key, each in value.items())} }}"
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    # JSON strings without surrogates are TOML strings, too.
    return json.dumps(value, ensure_ascii=False)

"""What `rollbook access` does: it reads the file as a server does, and replaces it whole, with what is added.

A server that reads it meanwhile sees the old file or the new one; its last line, `# end`, says that it is whole (AF1).
"""

import json
import os
import secrets
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from rollbook.api.access.core.file_settling import END
from rollbook.api.access.core.principals import SECTION, Principals, digest_of, parse_principals
from rollbook.api.access.token_file import require_own
from rollbook.api.cli.output import tell_rows, time_of
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.runtime.config import read_config_file

_TOKEN_BYTES: Final = 32
_LISTS: Final = ("read", "append", "admin", "deny")
_COLUMNS: Final = ("name", *_LISTS, "monitor", "operate", "expires")
_WIDE: Final = ("quotas", "tokens", "certificates")


def add(path: str, name: str, days: int | None, **what: Any) -> None:
    certificates: Sequence[str] = what.pop("certificate")
    if certificates and days:
        raise InvalidRequest("--days is of tokens; a certificate has its own end")
    if not any(what[each] for each in ("read", "append", "admin", "monitor", "operate")):
        raise InvalidRequest(
            f"{name} could do nothing",
            next_step="say --read, --append or --admin LOGS, --monitor or --operate",
        )
    secret = "" if certificates else new_token()
    table: dict[str, Any] = {each: list(what.pop(each)) for each in _LISTS}
    table |= {each: number for each, number in what.items() if number}
    table["certificates"] = list(certificates)
    table["tokens"] = [_hashed(secret, days)] if secret else []
    section = _as_toml(name, {key: value for key, value in table.items() if value})
    there = read(path) if os.path.exists(path) else Principals([])
    if there.named(name) is not None:
        raise BadConfig(f"there is a principal {name}", path=path, next_step="edit the file")
    added = parse_principals(tomllib.loads(section)[SECTION])
    Principals([*there, *added])  # Raises if a name or token is taken.
    _replace(path, section)
    if secret:
        click.echo(secret)


def _replace(path: str, section: str) -> None:
    """By a file of the same mode and owner. Raises `OSError`."""
    path = os.path.realpath(path)
    text, found = "", None
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        text, found = file.read(), os.fstat(file.fileno())
    end = f"\n{END.decode()}\n"
    text = f"{text.rstrip()}\n".removesuffix(end).rstrip()
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
    return json.dumps(value, ensure_ascii=False)  # But for surrogates, TOML says it alike.

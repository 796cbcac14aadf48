"""The actions of `rollbook access`. They read the access file like a server, and change it with
`access_file_rewrite.py`.
"""

import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from rollbook.api.access.access_file_permissions import require_own
from rollbook.api.access.core.access_file import (
    SECTION,
    Principal,
    Principals,
    digest_of,
    parse_principals,
)
from rollbook.api.cli.access.access_file_rewrite import locked, parted, replace_file, rewrite
from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.output import tell_rows, time_of
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.runtime.config import read_config_file

_TOKEN_BYTES: Final = 32
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
    with locked(path):
        there = read(path) if os.path.exists(path) else Principals([])
        if there.named(name) is not None:
            raise BadConfig(
                f"there is already a principal {name}", path=path, next_step="edit the file"
            )
        added = parse_principals(tomllib.loads(section)[SECTION])
        Principals([*there, *added])  # Raises an error if a name or token is taken.
        replace_file(path, section)
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
            text = "".join(parted(path, text, name)[::2])
        return text

    with locked(path):
        rewrite(path, read(path), without, names, tokens=None)


def rotate(path: str, name: str, days: int | None) -> None:
    """Adds a token. Earlier tokens stay valid until they are dropped."""
    principal = _require_known(path, read(path), name)
    if not principal.tokens and principal.certificates:
        raise BadConfig(f"{name} has certificates instead of tokens", path=path)
    secret = new_token()

    def with_token(text: str) -> str:
        before, section, after = parted(path, text, name)
        entry = _value(_hashed(secret, days))
        changed, count = _TOKENS.subn(lambda found: f"{found[0]}{entry}, ", section, count=1)
        if count != 1:
            raise BadConfig(f"there is no line `tokens = […]` in the section of {name}", path=path,
                            next_step="run `rollbook access token`, and add the entry that it prints to the file")  # fmt: skip
        return f"{before}{changed}{after}"

    with locked(path):
        there = read(path)
        count = len(_require_known(path, there, name).tokens)
        rewrite(path, there, with_token, (name,), tokens=count + 1)
    click.echo(secret)


def drop_old_tokens(path: str, name: str) -> None:
    """Drops all tokens except the first one, where `rotate` puts the newest."""
    principal = _require_known(path, read(path), name)
    if len(principal.tokens) < 2:
        raise BadConfig(f"{name} has only one token", path=path, next_step="rotate it first")

    def with_one(text: str) -> str:
        before, section, after = parted(path, text, name)
        tokens = tomllib.loads(section)[SECTION][name]["tokens"]
        (found,) = _TOKENS_WHOLE.findall(section)
        return f"{before}{section.replace(found, f'tokens = {_value(tokens[:1])}')}{after}"

    with locked(path):
        rewrite(path, read(path), with_one, (name,), tokens=1)


def _require_known(path: str, there: Principals, name: str) -> Principal:
    found = there.named(name)
    if found is None:
        raise BadConfig(
            f"there is no principal {name}", path=path, next_step="rollbook access ls --file FILE"
        )
    return found


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

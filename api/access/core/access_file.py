"""The access file: which principals exist, and how they authenticate.

    [principals.ingest]
    tokens = [{ sha256 = "…", expires = 2027-01-31T00:00:00Z }]     two while a token is being replaced
    certificates = ["ingest.example.com"]       names in the client's certificate
    append = ["team/orders", "team/metrics-*"]  rights: core/grants.py
    read = ["team/*"]
    deny = ["team/salaries"]
    append_bytes_per_s = 10_000_000             quotas: core/quotas.py
    streams = 100

A token is 32 random bytes, or something that is equally hard to guess. The file has only the token's SHA-256, so a
reader of the file cannot authenticate (G4). Tokens are looked up by digest, so that the duration of a lookup does not
reveal how much of a guessed token is right.
"""

import hashlib
import hmac
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from rollbook.api.access.core.grants import EVERYTHING, Grants
from rollbook.api.access.core.quotas import Quotas
from rollbook.proto.errors import BadConfig

OPERATOR: Final = "operator"  # The principal of callers with a server's single token.
ANYBODY: Final = "anybody"  # The principal of all callers of a server without authentication.
SECTION: Final = "principals"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RIGHTS: Final = ("read", "append", "admin", "deny")
_FLAGS: Final = ("monitor", "operate")
_QUOTAS: Final = tuple(each.name for each in fields(Quotas))
_KEYS: Final = ("tokens", "certificates", *_FLAGS, *_RIGHTS, *_QUOTAS)

_NO_QUOTAS: Final = Quotas()


@dataclass(frozen=True, slots=True)
class HashedToken:
    sha256: str
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    grants: Grants
    quotas: Quotas = _NO_QUOTAS
    tokens: tuple[HashedToken, ...] = ()
    certificates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvenPrincipal:
    """The principal of a token or a certificate, and the time when that credential expires."""

    principal: Principal
    expires_us: int | None = None


class Principals:
    """All principals. No two principals share a token or a certificate's name."""

    def __init__(self, principals: Collection[Principal]) -> None:
        """Raises `BadConfig`."""
        self._by_name = {each.name: each for each in principals}
        self._by_digest: dict[str, ProvenPrincipal] = {}
        self._by_certificate: dict[str, ProvenPrincipal] = {}
        for each in principals:
            for token in each.tokens:
                if token.sha256 in self._by_digest:
                    raise BadConfig(
                        f"the principal {each.name} has a token twice, or shares one with another principal"
                    )
                self._by_digest[token.sha256] = ProvenPrincipal(each, token.expires_us)
            for name in each.certificates:
                if name in self._by_certificate:
                    raise BadConfig(f"the certificate {name} belongs to two principals")
                self._by_certificate[name] = ProvenPrincipal(each)

    def __iter__(self) -> Iterator[Principal]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Principal | None:
        return self._by_name.get(name)

    def by_token(self, token: str) -> ProvenPrincipal | None:
        digest = digest_of(token)
        found = self._by_digest.get(digest)
        if found is None:
            return None
        is_his = [hmac.compare_digest(digest, each.sha256) for each in found.principal.tokens]
        return found if any(is_his) else None

    def by_certificate(self, names: Collection[str]) -> ProvenPrincipal | None:
        """Returns the principal of the first name that belongs to a principal."""
        return next((s for name in names if (s := self._by_certificate.get(name))), None)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def operator_with(token: str) -> Principals:
    """The principals of a server with a single token: one principal, which may do everything."""
    return Principals([Principal(OPERATOR, EVERYTHING, tokens=(HashedToken(digest_of(token)),))])


def parse_principals(tables: Mapping[str, Any]) -> Principals:
    """Parses the file's section of principals. Raises `BadConfig`."""
    return Principals([_parse(name, table) for name, table in tables.items()])


def _parse(name: str, table: Any) -> Principal:
    where = f"principals.{name[:100]}"
    if not _NAME.fullmatch(name) or name in (OPERATOR, ANYBODY):
        raise BadConfig(f"[{where}] is not a valid name for a principal")
    if not isinstance(table, Mapping):
        raise BadConfig(f"[{where}] is not a table")
    for key in table:
        if key not in _KEYS:
            raise BadConfig(f"[{where}] has an unknown key {key[:100]!r}")
    try:
        granted: dict[str, Any] = {
            **{key: _strings(table[key], key) for key in _RIGHTS if key in table},
            **{key: _flag(table[key], key) for key in _FLAGS if key in table},
        }
        return Principal(
            name,
            Grants(**granted),
            Quotas(**{key: _number(table[key], key) for key in _QUOTAS if key in table}),
            tuple(map(_token, _list(table.get("tokens", []), "tokens"))),
            _strings(table.get("certificates", []), "certificates"),
        )
    except BadConfig as error:
        raise BadConfig(f"[{where}] {error.message}", next_step=error.next_step) from None


def _token(said: Any) -> HashedToken:
    if not isinstance(said, Mapping) or not {"sha256"} <= set(said) <= {"sha256", "expires"}:
        raise BadConfig("a token is { sha256 = …, expires = … }")
    if not isinstance(said["sha256"], str) or not _SHA256.fullmatch(said["sha256"]):
        raise BadConfig("a token's sha256 has to be 64 hexadecimal digits in lower case")
    return HashedToken(said["sha256"], _time_us(said["expires"]) if "expires" in said else None)


def _time_us(said: Any) -> int:
    if getattr(said, "tzinfo", None) is None:  # The value is not a time, or has no zone.
        raise BadConfig("`expires` has to be a time with a zone: 2027-01-31T00:00:00Z")
    return int(said.timestamp() * 1_000_000)


def _number(said: Any, key: str) -> int:
    if type(said) is not int:
        raise BadConfig(f"{key} has to be a whole number")
    return said


def _flag(said: Any, key: str) -> bool:
    if type(said) is not bool:
        raise BadConfig(f"{key} has to be true or false")
    return said


def _strings(said: Any, key: str) -> tuple[str, ...]:
    found = _list(said, key)
    if not all(isinstance(each, str) and each for each in found):
        raise BadConfig(f"{key} has to be a list of strings")
    return tuple(found)


def _list(said: Any, key: str) -> list[Any]:
    if not isinstance(said, list):
        raise BadConfig(f"{key} is a list")
    return said

"""Identifies the caller by its token, or otherwise by its certificate.

Each call checks whether the files have changed, and open streams check it each second, so that a new
token works without a restart, and a removed token stops working. If a file is unusable, or may be
half-written, its earlier contents stay in force (AF1). If the principal of a stream changes, the stream
ends, and the client connects again with the new rights.
"""

import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import structlog

from rollbook.api.access.access_file_permissions import require_own
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.core.access_file import (
    ANYBODY,
    SECTION,
    Principal,
    Principals,
    ProvenPrincipal,
    operator_with,
    parse_principals,
)
from rollbook.api.access.core.grants import EVERYTHING
from rollbook.api.access.core.quotas import PrincipalAccount
from rollbook.api.access.operator_token_file import token_of
from rollbook.api.access.watched_file import WatchedFile
from rollbook.proto.errors import BadConfig, Unauthorized
from rollbook.proto.runtime.config import parse_config

logger = structlog.get_logger()

_LOOK_NS: Final = 1_000_000_000
_BEARER: Final = "bearer"
# The most characters of an error: a certificate may have thousands of names.
_TEXT_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class AuthenticatedCaller:
    """An authenticated principal."""

    principal: Principal
    account: PrincipalAccount
    peer: str = ""  # The caller's address, for the audit.
    authenticator: "Authenticator | None" = None  # None: callers are not authenticated.
    expires_us: int | None = None
    is_relay: bool = False  # True: a log server relays the call of an authorized caller (RY2).

    def is_in_force(self) -> bool:
        return self.authenticator is None or self.authenticator.still_admits(self)


def anybody(peer: str = "") -> AuthenticatedCaller:
    """The caller of each request when authentication is off."""
    return AuthenticatedCaller(_ANYBODY, _ACCOUNT, peer)


_ANYBODY: Final = Principal(ANYBODY, EVERYTHING)
_ACCOUNT: Final = PrincipalAccount(_ANYBODY.quotas)

CALLER: Final[ContextVar[AuthenticatedCaller]] = ContextVar("CALLER")
"""The caller of the request that this task serves. gRPC and HTTP set it; without it nothing is served."""


class Authenticator:
    def __init__(
        self,
        token_file: str | None,
        access_file: str | None = None,
        *,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises `BadConfig`."""
        self.audit = AuditLog(now_ns)
        self._wall_us, self._now_ns = wall_us, now_ns
        self._token = WatchedFile(token_file, is_token=True) if token_file else None
        self._access = WatchedFile(access_file) if access_file else None
        self._files = [each for each in (self._token, self._access) if each is not None]
        self._looked_ns = now_ns()
        self._principals = self._parse()
        self._accounts: dict[str, PrincipalAccount] = {}

    @classmethod
    def of(cls, token_file: str | None, access_file: str | None = None) -> "Authenticator | None":
        """Returns an authenticator. Without a file, returns None: callers are not authenticated. Raises `BadConfig`."""
        if not token_file and not access_file:
            return None
        return cls(token_file or None, access_file or None)

    def admit(
        self, authorization: str, certificate_names: Collection[str] = (), peer: str = ""
    ) -> AuthenticatedCaller:
        """Returns the caller. `authorization`: the header's value; empty if there is none. Raises `Unauthorized`."""
        self._look()
        if authorization:
            found = self._shown_by(authorization)
        else:
            found = self._principals.by_certificate(certificate_names)
        if found is None or self._is_past(found.expires_us):
            refusal = _refusal_of(authorization, certificate_names, found)
            name = found.principal.name if found is not None else ""
            self.audit.refused(refusal, principal=name, peer=peer)
            raise refusal
        principal = found.principal
        return AuthenticatedCaller(
            principal, self._account_of(principal), peer, self, found.expires_us
        )

    def knows(self, authorization: str) -> bool:
        """Whether the header has a valid token. If not, `admit` raises the error with the reason."""
        self._look()
        found = self._shown_by(authorization)
        return found is not None and not self._is_past(found.expires_us)

    def _is_past(self, expires_us: int | None) -> bool:
        return expires_us is not None and self._wall_us() >= expires_us

    def _shown_by(self, authorization: str) -> ProvenPrincipal | None:
        scheme, _, token = authorization.partition(" ")
        return self._principals.by_token(token.strip()) if scheme.lower() == _BEARER else None

    def still_admits(self, caller: AuthenticatedCaller) -> bool:
        if self._now_ns() - self._looked_ns >= _LOOK_NS:
            self._look()
        if self._is_past(caller.expires_us):
            return False
        return self._principals.named(caller.principal.name) == caller.principal

    def _account_of(self, principal: Principal) -> PrincipalAccount:
        account = self._accounts.get(principal.name)
        if account is None or account.quotas != principal.quotas:
            account = self._accounts[principal.name] = PrincipalAccount(principal.quotas)
        return account

    # --- Files ------------------------------------------------------------------------------

    def _look(self) -> None:
        self._looked_ns = now_ns = self._now_ns()
        wall_ns = self._wall_us() * 1000
        # A list, not a generator, so that every file is checked.
        news = [each.look(now_ns, wall_ns) for each in self._files]
        if not any(news):
            return
        for each in self._files:
            if each.waits_for:  # The earlier contents stay in force.
                logger.warning("access_not_reloaded", path=each.path, reason=each.waits_for)
                return
        try:
            self._principals = self._parse()
            logger.info("access_reloaded", principals=len(self._principals))
        except BadConfig as error:
            logger.warning("access_not_reloaded", reason=str(error))

    def _parse(self) -> Principals:
        found = Principals([])
        if self._token is not None:
            found = operator_with(token_of(self._token))
        if self._access is not None:
            path = self._access.path
            require_own(path)
            tables = parse_config(self._access.data, path, (SECTION,))
            try:
                found = Principals([*found, *parse_principals(tables.get(SECTION, {}))])
            except BadConfig as error:
                error.ids["path"] = path
                raise
        return found


def _refusal_of(
    authorization: str, certificate_names: Collection[str], found: ProvenPrincipal | None
) -> Unauthorized:
    """Returns the error for a refused caller. It says that the token has expired or is unknown, that the header has no
    bearer token, that no principal has the certificate, or that the caller has sent no credentials.
    """
    if found is not None:
        return Unauthorized(
            "the token has expired",
            principal=found.principal.name,
            next_step="send a new token: `rollbook access token` makes one",
        )
    if authorization:
        if authorization.partition(" ")[0].lower() != _BEARER:
            return Unauthorized(
                "the authorization header does not contain a bearer token",
                next_step="send the token: authorization: Bearer …",
            )
        return Unauthorized(
            "the token is not known here",
            next_step="use the token that `rollbook access` printed for this cluster, "
            "or the one in the server's --token-file",
        )
    if certificate_names:
        names = ", ".join(certificate_names)
        return Unauthorized(
            f"no principal has a name that is in the client's certificate: {names}"[:_TEXT_MAX],
            next_step="add one of them to `certificates` of a principal, or send a token: authorization: Bearer …",
        )
    return Unauthorized("no token was shown", next_step="send the token: authorization: Bearer …")

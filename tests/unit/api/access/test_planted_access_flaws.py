"""Each test that docs/security.md names fails when the code that it covers is broken.

Each is run without a flaw, and must pass, and with a planted flaw, and must fail.
"""

import inspect
import io
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import google_crc32c
import grpc
import pytest
import structlog

from rollbook.api.access import authenticator as authenticator_module
from rollbook.api.access import authorized_service
from rollbook.api.access import operator_token_file as token_file_module
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.authenticator import AuthenticatedCaller, Authenticator
from rollbook.api.access.certificate_expiry_watch import CertificateWatch
from rollbook.api.access.core import grants
from rollbook.api.access.core.access_file import Principals, ProvenPrincipal
from rollbook.api.access.core.file_stability import FileStability
from rollbook.api.access.core.grants import Grants
from rollbook.api.access.core.quotas import Meter, TokenBucket
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.token_interceptor import Strangers
from rollbook.api.rest.bookie_admin_server import AdminServer
from rollbook.api.rest.log_app import RestServer
from rollbook.api.rest.request_limits import Guard
from rollbook.api.rest.server import HttpConfig
from rollbook.logservice import messages
from rollbook.proto.errors import Unauthorized
from rollbook.proto.runtime import tls
from rollbook.proto.runtime.tls import TlsFiles
from tests.architecture import test_security, test_supply_chain
from tests.architecture.source import Module
from tests.architecture.test_security import ROWS
from tests.support.planting import Patch, planted
from tests.unit.api.access import test_access_over_grpc_and_http as doors
from tests.unit.api.access import test_certificate_expiry_watch
from tests.unit.api.access.core import (
    test_access_file,
    test_file_stability,
    test_grants,
    test_quotas,
)
from tests.unit.api.access.test_access_over_grpc_and_http import Site
from tests.unit.api.grpc.samples import sample
from tests.unit.api.rest import test_bookie_admin_server as bookie
from tests.unit.api.rest import test_hostile_http_clients as log_server
from tests.unit.api.rest import test_server as bookie_server
from tests.unit.api.rest.fake_admin import FakeAdmin
from tests.unit.api.rest.http_client import Client
from tests.unit.logservice.core import test_hostile_blocks

there, authority, of_server = doors.there, doors.authority, doors.of_server
token_file = bookie_server.token_file
_BY_TOKEN: Final = Principals.by_token
_ADMIT: Final = Authenticator.admit
_ACT: Final = AuditLog.act
_LOAD: Final = tls._load
_GRPC_CREDENTIALS: Final = grpc.dynamic_ssl_server_credentials
_AS_BEFORE: Final[Any] = lambda: None  # noqa: E731
_READ_TEXT: Final = Path.read_text
_SOON_S: Final = 2.0  # Time-out for a response that the planted flaw prevents.
_HARMLESS: Final = Module(Path("module.py"), "import json")
_SOURCE: Final = SimpleNamespace(path=_HARMLESS.path, nodes=_HARMLESS.nodes)
_SOURCE.imports = lambda: Module.imports(_SOURCE)  # type: ignore[arg-type]  # It reads only `nodes`.


@dataclass(frozen=True)
class Flaw:
    what: str
    patches: tuple[Patch, ...]
    caught_by: Callable[..., Any]
    given: Mapping[str, Any]
    shows_as: type[Exception] | None = None  # None: an assert of the test fails.


def _flaw(
    what: str,
    caught_by: Callable[..., Any],
    *patches: Patch,
    shows_as: type[Exception] | None = None,
    **given: Any,
) -> Flaw:
    return Flaw(what, patches, caught_by, given, shows_as)


def _let_in_by_digest(self: Principals, token: str) -> ProvenPrincipal | None:
    return _BY_TOKEN(self, token) or self._by_digest.get(token)


def _admit_and_log(self: Authenticator, authorization: str, *more: Any) -> AuthenticatedCaller:
    structlog.get_logger().info("caller_came", shown=authorization)
    return _ADMIT(self, authorization, *more)


def _act_of_nothing(
    self: AuditLog, *, principal: str, peer: str, method: str, only_begins: bool = False, **_: Any
) -> AbstractContextManager[dict[str, Any]]:
    return _ACT(self, principal=principal, peer=peer, method=method, only_begins=only_begins)


def _accept_any_certificate(files: TlsFiles, oldest: ssl.TLSVersion) -> ssl.SSLContext:
    context = _LOAD(files, oldest)
    context.verify_mode = ssl.CERT_OPTIONAL if files.authorities else ssl.CERT_NONE
    return context


def _know_any_name(self: Principals, names: Collection[str]) -> ProvenPrincipal | None:
    return next(iter(self._by_certificate.values())) if names else None


def _read_without_hashes(self: Path) -> str:
    return _READ_TEXT(self).replace("--hash=", "")


FLAWS: Final = (
    _flaw(
        "a network is served without a way to know callers",
        doors.test_network_address_needs_tls_and_authentication,
        (GrpcConfig, "__post_init__", lambda _: None),
        of_server=TlsFiles("server.pem"),
    ),
    _flaw(
        "gRPC requires no client certificate",
        doors.test_client_certificate_must_be_valid_and_known,
        (
            grpc,
            "dynamic_ssl_server_credentials",
            lambda first, again, **_: _GRPC_CREDENTIALS(first, again, False),
        ),
    ),
    _flaw(
        "HTTP requires no client certificate",
        doors.test_client_certificate_must_be_valid_and_known,
        (tls, "_load", _accept_any_certificate),
    ),
    _flaw(
        "any certificate of the authorities authenticates",
        doors.test_client_certificate_must_be_valid_and_known,
        (Principals, "by_certificate", _know_any_name),
    ),
    _flaw(
        "gRPC reads its certificate once",
        doors.test_renewed_certificates_need_no_restart,
        (
            grpc,
            "dynamic_ssl_server_credentials",
            lambda first, _, **more: _GRPC_CREDENTIALS(first, _AS_BEFORE, **more),
        ),
    ),
    _flaw(
        "HTTP reads its certificate once",
        doors.test_renewed_certificates_need_no_restart,
        (tls._Reloading, "_look", lambda _: ()),
    ),
    _flaw(
        "a certificate expires without a warning",
        test_certificate_expiry_watch.test_certificate_expiry_is_read_and_warned_of,
        (CertificateWatch, "look", lambda _: None),
    ),
    _flaw(
        "the access file is read once only",
        doors.test_changed_access_file_is_reloaded,
        (Authenticator, "_look", lambda _: None),
        shows_as=Unauthorized,
    ),
    _flaw(
        "a half-written file is taken",
        test_file_stability.test_half_written_file_is_not_taken,
        (FileStability, "_wait", lambda *_: None),
    ),
    _flaw(
        "a digest authenticates like its token",
        test_access_file.test_credentials_find_their_principal_in_the_access_file,
        (Principals, "by_token", _let_in_by_digest),
    ),
    _flaw(
        "tokens never expire",
        doors.test_grpc_methods_need_their_rights,
        (Authenticator, "_is_past", lambda *_: False),
    ),
    _flaw(
        "open streams outlive their rights",
        doors.test_append_stream_ends_when_its_token_is_removed,
        (Authenticator, "still_admits", lambda *_: True),
    ),
    _flaw(
        "denied logs are allowed",
        test_grants.test_each_request_needs_its_right,
        (Grants, "may", lambda self, right, log: grants._is_any(getattr(self, right.value), log)),
        message=sample(messages.Append),
    ),
    _flaw(
        "gRPC checks no rights",
        doors.test_grpc_methods_need_their_rights,
        (authorized_service, "may_ask", lambda *_: True),
    ),
    _flaw(
        "HTTP checks no rights",
        doors.test_http_routes_need_their_rights,
        (authorized_service, "may_ask", lambda *_: True),
    ),
    _flaw(
        "tokens are logged",
        doors.test_tokens_are_never_logged_or_shown,
        (Authenticator, "admit", _admit_and_log),
    ),
    _flaw(
        "anybody may write the access file",
        doors.test_access_file_writable_by_others_is_refused,
        (authenticator_module, "require_own", lambda _: None),
    ),
    _flaw(
        "anybody may read a server's token",
        bookie_server.test_a_token_is_read_from_a_private_file,
        (token_file_module, "_OTHERS_READ", 0),
    ),
    _flaw(
        "only single bodies are bounded",
        log_server.test_all_bodies_together_are_bounded,
        (Guard, "_hold", lambda *_: None),
    ),
    _flaw(
        "unauthenticated callers are served",
        doors.test_unauthenticated_callers_cannot_hold_calls,
        (Strangers, "intercept_service", lambda _, serve, call: serve(call)),
        (doors, "HELD_S", _SOON_S),
    ),
    _flaw(
        "any certificate can hold a call",
        doors.test_unknown_certificate_cannot_hold_a_call,
        (Strangers, "_known_first", lambda _, handler: handler),
        (doors, "HELD_S", _SOON_S),
    ),
    _flaw(
        "debt causes no wait",
        test_quotas.test_rate_is_never_exceeded,
        (TokenBucket, "wait_ns", lambda *_: 0),
        seed=1,
    ),
    _flaw(
        "calls beyond the rate are served",
        doors.test_call_beyond_its_rate_gets_a_retry_delay,
        (Meter, "require", lambda *_: None),
    ),
    _flaw(
        "acts are not audited",
        doors.test_acts_and_refusals_are_audited,
        (AuditLog, "done", lambda *_, **__: None),
    ),
    _flaw(
        "the log level silences the audit",
        doors.test_log_level_does_not_silence_the_audit,
        (AuditLog, "done", lambda _, **who: structlog.get_logger().info("act_done", **who)),
    ),
    _flaw(
        "a bookie audits acts without details",
        bookie.test_every_change_to_a_bookie_is_audited,
        (AuditLog, "act", _act_of_nothing),
    ),
    _flaw(
        "checksums are not verified",
        test_hostile_blocks.test_flipped_bit_is_refused,
        (
            google_crc32c,
            "value",
            lambda _: int.from_bytes(test_hostile_blocks.PLAIN[4:8], "little"),
        ),
        block=test_hostile_blocks.PLAIN,
    ),
    *(
        _flaw(
            f"a source has {planted_source!r}",
            test_security.test_no_module_can_execute_received_data,
            (_SOURCE, "nodes", Module(_HARMLESS.path, planted_source).nodes),
            module=_SOURCE,
        )
        for planted_source in ("import pickle", "eval(sent)", "subprocess.run(sent, shell=True)")
    ),
    _flaw(
        "requirements have no hashes",
        test_security.test_locked_requirements_have_hashes,
        (Path, "read_text", _read_without_hashes),
    ),
    _flaw(
        "the bill of materials lacks a package",
        test_supply_chain.test_sbom_lists_every_locked_package_with_its_hashes,
        (
            test_supply_chain,
            "BILL",
            {**test_supply_chain.BILL, "components": test_supply_chain.BILL["components"][1:]},
        ),
    ),
    _flaw(
        "a promise names a test that does not exist",
        test_security.test_every_security_goal_has_a_test_that_cites_it,
        (
            test_security,
            "ROWS",
            [*ROWS, ("G1", "tests/unit/api/access/test_access_over_grpc_and_http.py", "test_no")],
        ),
    ),
)

# Other exceptions do not count: an outdated test would raise them too.
_FAILURES: Final = (AssertionError, pytest.fail.Exception)


def test_each_promise_has_a_flaw() -> None:
    assert {name for _, _, name in ROWS} == {flaw.caught_by.__name__ for flaw in FLAWS}


@pytest.fixture(params=FLAWS, ids=lambda flaw: flaw.what)
def flaw(request: pytest.FixtureRequest) -> Flaw:
    found: Flaw = request.param
    return found


_LASTING: Final = ("authority", "of_server", "token_file")


@pytest.fixture
async def at_hand(
    flaw: Flaw,
    there: Site,
    log: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[dict[str, Any]]:
    wanted = _wanted_by(flaw)
    found = {"there": there, "log": log, "monkeypatch": monkeypatch, "tmp_path": there.path.parent}
    found |= {name: request.getfixturevalue(name) for name in _LASTING if name in wanted}
    if "client" in wanted:
        admin = FakeAdmin()
        admins = await AdminServer.start(admin, HttpConfig(doors.LOOPBACK))
        yield {**found, "admin": admin, "client": Client(admins.address)}
        await admins.close()
    elif flaw.caught_by.__module__ == log_server.__name__:
        core, config = log_server.made(), HttpConfig(doors.LOOPBACK)
        logs = await RestServer.start(core, config, lambda _: "", bounds=log_server.BOUNDS)
        yield {**found, "there": log_server.There(core, logs)}
        await logs.close()
    else:
        yield found


def _wanted_by(flaw: Flaw) -> Collection[str]:
    return inspect.signature(flaw.caught_by).parameters


async def _run(flaw: Flaw, at_hand: Mapping[str, Any]) -> None:
    known = {**at_hand, **flaw.given}
    given = {name: known[name] for name in _wanted_by(flaw)}
    if inspect.iscoroutine(running := flaw.caught_by(**given)):
        await running


async def test_security_test_passes_without_a_flaw(flaw: Flaw, at_hand: dict[str, Any]) -> None:
    await _run(flaw, at_hand)


async def test_security_test_fails_with_planted_flaw(flaw: Flaw, at_hand: dict[str, Any]) -> None:
    with planted(flaw.patches), pytest.raises(flaw.shows_as or _FAILURES):
        await _run(flaw, at_hand)

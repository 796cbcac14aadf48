"""The tests that docs/security.md names fail when what they watch over is broken: each is run as it is, and passes,
and with a planted flaw.

A goal that has no flaw here says why.
"""

import inspect
import io
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import pytest
import structlog

from rollbook.api.access import doorkeeper as doorkeeper_module
from rollbook.api.access import guarded
from rollbook.api.access.audit import Audit
from rollbook.api.access.core import grants
from rollbook.api.access.core.grants import Grants
from rollbook.api.access.core.principals import Principals, Shown
from rollbook.api.access.core.quotas import Meter, Rate
from rollbook.api.access.doorkeeper import Caller, Doorkeeper
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.rest.bookie import AdminServer
from rollbook.api.rest.server import HttpConfig
from rollbook.logservice import words
from rollbook.proto.errors import Unauthorized
from rollbook.proto.runtime.tls import TlsFiles
from tests.architecture import test_security
from tests.architecture.test_security import ROWS
from tests.support.planting import Patch, planted
from tests.unit.api.access import test_doors as doors
from tests.unit.api.access.core import test_grants, test_principals, test_quotas
from tests.unit.api.access.test_doors import Site
from tests.unit.api.grpc.samples import sample
from tests.unit.api.rest import test_bookie as bookie
from tests.unit.api.rest.fake_admin import FakeAdmin
from tests.unit.api.rest.http_client import Client
from tests.unit.logservice.core import test_block_hostile

there = doors.there
_BY_TOKEN: Final = Principals.by_token
_ADMIT: Final = Doorkeeper.admit
_ACT: Final = Audit.act


@dataclass(frozen=True)
class Flaw:
    what: str
    patches: tuple[Patch, ...]
    caught_by: Callable[..., Any]
    given: Mapping[str, Any]
    shows_as: type[Exception] | None = None  # None: something that the test says is not so.


def _flaw(
    what: str,
    caught_by: Callable[..., Any],
    *patches: Patch,
    shows_as: type[Exception] | None = None,
    **given: Any,
) -> Flaw:
    return Flaw(what, patches, caught_by, given, shows_as)


def _let_in_by_digest(self: Principals, token: str) -> Shown | None:
    return _BY_TOKEN(self, token) or self._by_digest.get(token)


def _admit_aloud(self: Doorkeeper, authorization: str, *more: Any) -> Caller:
    structlog.get_logger().info("caller_came", shown=authorization)
    return _ADMIT(self, authorization, *more)


def _act_of_nothing(
    self: Audit, *, principal: str, peer: str, method: str, only_begins: bool = False, **_: Any
) -> AbstractContextManager[dict[str, Any]]:
    return _ACT(self, principal=principal, peer=peer, method=method, only_begins=only_begins)


FLAWS: Final = (
    _flaw(
        "a network is served without a way to know callers",
        doors.test_off_loopback_names_are_as_good_as_a_token,
        (GrpcConfig, "__post_init__", lambda _: None),
        of_server=TlsFiles("server.pem"),
    ),
    _flaw(
        "files are looked at once",
        doors.test_the_file_is_read_again,
        (Doorkeeper, "_look", lambda _: None),
        shows_as=Unauthorized,
    ),
    _flaw(
        "a digest is as good as its token",
        test_principals.test_the_file,
        (Principals, "by_token", _let_in_by_digest),
    ),
    _flaw(
        "what was opened stays open",
        doors.test_a_stream_ends_with_its_rights,
        (Doorkeeper, "still_admits", lambda *_: True),
    ),
    _flaw(
        "what is denied is not",
        test_grants.test_every_word_and_every_right,
        (Grants, "may", lambda self, right, log: grants._is_any(getattr(self, right.value), log)),
        word=sample(words.Append),
    ),
    _flaw(
        "nobody is asked for his rights",
        doors.test_every_method_and_every_principal,
        (guarded, "may_ask", lambda *_: True),
    ),
    _flaw(
        "nobody is asked for his rights over HTTP",
        doors.test_every_route_and_every_principal,
        (guarded, "may_ask", lambda *_: True),
    ),
    _flaw(
        "tokens are logged",
        doors.test_no_secret_is_ever_told,
        (Doorkeeper, "admit", _admit_aloud),
    ),
    _flaw(
        "anybody may write the access file",
        doors.test_a_file_that_others_may_write_is_none,
        (doorkeeper_module, "require_own", lambda _: None),
    ),
    _flaw(
        "no debt is ever waited off",
        test_quotas.test_nobody_gets_more_than_his_rate,
        (Rate, "wait_ns", lambda *_: 0),
        seed=1,
    ),
    _flaw(
        "calls beyond the rate are served",
        doors.test_beyond_its_rate_a_call_is_told_when_to_come_back,
        (Meter, "require", lambda *_: None),
    ),
    _flaw(
        "what was done is not told",
        doors.test_acts_and_refusals_are_told,
        (Audit, "done", lambda *_, **__: None),
    ),
    _flaw(
        "the level of the log decides what is told",
        doors.test_no_level_silences_the_audit,
        (Audit, "done", lambda _, **who: structlog.get_logger().info("act_done", **who)),
    ),
    _flaw(
        "a bookie does not tell what it is about",
        bookie.test_the_audit_has_whatever_a_bookie_was_told,
        (Audit, "act", _act_of_nothing),
    ),
    _flaw(
        "checksums are believed",
        test_block_hostile.test_a_bit_that_flips_on_the_way_is_noticed,
        (google_crc32c, "value", lambda _: int.from_bytes(test_block_hostile.PLAIN[4:8], "little")),
        block=test_block_hostile.PLAIN,
    ),
    _flaw(
        "a promise names a test that is not there",
        test_security.test_each_promise_has_its_test,
        (test_security, "ROWS", [*ROWS, ("G1", "tests/unit/api/access/test_doors.py", "test_no")]),
    ),
)

# Nothing else: else a test that rots would do.
_FAILURES: Final = (AssertionError, pytest.fail.Exception)
WITHOUT: Final = {
    "test_who_shows_a_certificate": "it is OpenSSL that would have to be broken",
    "test_renewed_certificates_need_no_restart": "a stale certificate shows itself after a timeout",
    "test_all_bodies_together_are_bounded": "without the bound it would wait for its deadline",
    "test_strangers_hold_no_call": "likewise",
    "test_a_certificate_alone_holds_no_call": "likewise",
    "test_nothing_runs_what_it_is_sent": "it reads the sources",
    "test_what_is_installed_has_a_hash": "it reads the lock files",
    "test_the_bill_names_every_locked_package_with_its_hashes": "likewise",
}


def test_each_promise_has_a_flaw_or_a_reason() -> None:
    tried = {flaw.caught_by.__name__ for flaw in FLAWS}
    assert not tried & set(WITHOUT)
    assert {name for _, _, name in ROWS} == tried | set(WITHOUT)


@pytest.fixture(params=FLAWS, ids=lambda flaw: flaw.what)
def flaw(request: pytest.FixtureRequest) -> Flaw:
    found: Flaw = request.param
    return found


@pytest.fixture
async def at_hand(
    flaw: Flaw, there: Site, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    found = {"there": there, "log": log, "monkeypatch": monkeypatch, "tmp_path": there.path.parent}
    if "client" not in _wanted_by(flaw):
        yield found
        return
    admin = FakeAdmin()
    server = await AdminServer.start(admin, HttpConfig(doors.LOOPBACK))
    yield {**found, "admin": admin, "client": Client(server.address)}
    await server.close()


def _wanted_by(flaw: Flaw) -> Collection[str]:
    return inspect.signature(flaw.caught_by).parameters


async def _run(flaw: Flaw, at_hand: Mapping[str, Any]) -> None:
    known = {**at_hand, **flaw.given}
    given = {name: known[name] for name in _wanted_by(flaw)}
    if inspect.iscoroutine(running := flaw.caught_by(**given)):
        await running


async def test_without_a_flaw_nothing_is_found(flaw: Flaw, at_hand: dict[str, Any]) -> None:
    await _run(flaw, at_hand)


async def test_a_planted_flaw_is_found(flaw: Flaw, at_hand: dict[str, Any]) -> None:
    with planted(flaw.patches), pytest.raises(flaw.shows_as or _FAILURES):
        await _run(flaw, at_hand)

"""The tests that docs/security.md names fail when what they watch over is broken: each is run with a planted flaw.

A goal that has no flaw here says why.
"""

import inspect
from collections.abc import Callable, Mapping
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
from rollbook.logservice import words
from rollbook.proto.errors import RollbookError
from rollbook.proto.runtime.tls import TlsFiles
from tests.architecture import test_security
from tests.architecture.test_security import ROWS
from tests.support.planting import Patch, planted
from tests.unit.api.access import test_doors as doors
from tests.unit.api.access.core import test_grants, test_principals, test_quotas
from tests.unit.api.access.test_doors import Site
from tests.unit.api.grpc.samples import sample
from tests.unit.logservice.core import test_block_hostile

there = doors.there
_BY_TOKEN: Final = Principals.by_token
_ADMIT: Final = Doorkeeper.admit


@dataclass(frozen=True)
class Flaw:
    what: str
    patches: tuple[Patch, ...]
    caught_by: Callable[..., Any]
    given: Mapping[str, Any]


def _flaw(what: str, caught_by: Callable[..., Any], *patches: Patch, **given: Any) -> Flaw:
    return Flaw(what, patches, caught_by, given)


def _let_in_by_digest(self: Principals, token: str) -> Shown | None:
    return _BY_TOKEN(self, token) or self._by_digest.get(token)


def _admit_aloud(self: Doorkeeper, authorization: str, *more: Any) -> Caller:
    structlog.get_logger().info("caller_came", shown=authorization)
    return _ADMIT(self, authorization, *more)


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

_FAILURES: Final = (AssertionError, ValueError, RollbookError, pytest.fail.Exception)
WITHOUT: Final = {
    "test_who_shows_a_certificate": "it is OpenSSL that would have to be broken",
    "test_renewed_certificates_need_no_restart": "a stale certificate shows itself after a timeout",
    "test_all_bodies_together_are_bounded": "without the bound it would wait for its deadline",
    "test_strangers_hold_no_call": "likewise",
    "test_a_certificate_alone_holds_no_call": "likewise",
    "test_the_audit_has_whatever_a_bookie_was_told": "see what was done, above: one audit",
    "test_nothing_runs_what_it_is_sent": "it reads the sources",
    "test_what_is_installed_has_a_hash": "it reads the lock files",
}


def test_each_promise_has_a_flaw_or_a_reason() -> None:
    tried = {flaw.caught_by.__name__ for flaw in FLAWS}
    assert not tried & set(WITHOUT)
    assert {name for _, _, name in ROWS} == tried | set(WITHOUT)


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.what)
async def test_a_planted_flaw_is_found(
    flaw: Flaw, request: pytest.FixtureRequest, there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = {"there": there, "monkeypatch": monkeypatch, **flaw.given}
    at_hand["tmp_path"] = there.path.parent
    wanted = inspect.signature(flaw.caught_by).parameters
    given = {name: at_hand[name] for name in wanted}

    async def run() -> None:
        if inspect.iscoroutine(running := flaw.caught_by(**given)):
            await running

    if flaw.given:  # As it is: what is given here, the flaw alone has to break.
        await run()
    with planted(flaw.patches), pytest.raises(_FAILURES):
        await run()

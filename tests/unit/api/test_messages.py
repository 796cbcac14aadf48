"""Each class of error as the command line, HTTP and gRPC show it."""

import json
import sys
from typing import Final

import pytest
from google.protobuf.text_format import MessageToString

from rollbook.api.cli.error_output import explain_error
from rollbook.api.grpc.status import detail_of, status_of, text_of
from rollbook.api.rest.problems import problem_of
from rollbook.proto import errors
from rollbook.proto.errors import RollbookError, every_error
from tests.messages import CLI, GRPC, REST, Messages

_ERRORS: Final = [each for each in every_error() if each.__module__ == errors.__name__]


def _bare(error: RollbookError) -> str:
    return f"error {type(error).__name__}"


def _full(error: RollbookError) -> str:
    return f"error {type(error).__name__} with details"


_SAMPLES: Final = {_bare(each()): each() for each in _ERRORS} | {
    _full(each): each
    for each in (
        errors.NoSuchLedger("there is no ledger 7", next_step="rollbook ledger ls", ledger_id=7),
        errors.NotOwner("log orders has another owner", owner="log://b:7400", owner_epoch=3),
        errors.Overloaded("4 of 4 appends wait", next_step="retry later", retry_after_ms=1500),
    )
}


@pytest.mark.parametrize("title", _SAMPLES)
def test_cli_error_matches_recorded_message(
    title: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rollbook"])
    explain_error(_SAMPLES[title])
    CLI.check(title, capsys.readouterr().err)


@pytest.mark.parametrize("title", _SAMPLES)
def test_http_problem_matches_recorded_message(title: str) -> None:
    problem = json.dumps(problem_of(_SAMPLES[title]), indent=1)
    REST.check(title, problem)


@pytest.mark.parametrize("title", _SAMPLES)
def test_grpc_status_matches_recorded_message(title: str) -> None:
    error = _SAMPLES[title]
    detail = MessageToString(detail_of(error))
    GRPC.check(title, f"{status_of(error).name}: {text_of(error)}\n{detail}")


@pytest.mark.parametrize("door", [CLI, REST, GRPC], ids=["cli", "rest", "grpc"])
def test_recorded_messages_belong_to_existing_errors(door: Messages) -> None:
    door.check_titles("error ", list(_SAMPLES))

"""Random requests to a real server (`python -m tests rest`), whose responses must match OpenAPI.

The server is a log server, or with `--of cluster` the management of a cluster (`cluster_subject.py`).

a response       comes in time, with a documented status, and never with the reason INTERNAL
a success        matches its schema
a refusal        is a problem with a reason of the table, and with the reason's status and outcome
the server       still works at the end, and has no reader left
"""

import http.client
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol

from rollbook.proto.errors import every_error
from tests.rest.cases import Case, Json, Known, case_of, misfits, without_references
from tests.support.dev import running_dev
from tests.tally import Tally

_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.1
_PROBLEM: Final = "application/problem+json"
_STREAMS: Final = ("text/event-stream", "application/x-ndjson")
_BY_HTTP: Final = {"401", "403", "404", "405", "406", "408", "413", "415", "421"}
_REASONS: Final = {error.code.reason: error.code.http for error in every_error()}
_SHOWN: Final = 20
_LIFE: Final = (
    60  # Requests per batch. Each batch has new logs, because requests seal and delete them.
)

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


class Subject(Protocol):
    """The target of the requests, in its own `rollbook dev`."""

    bookies: int
    often: str  # The ending of the paths that are requested most often.
    hooks: str  # The file with hooks for Schemathesis.

    def base(self, said: str) -> str:
        """Its `host:port`, from the output of `rollbook dev`."""

    def begin(self, door: "Door", number: int, folder: Path) -> Known:
        """Undoes the effects of earlier requests. Returns the existing names."""

    def begin_for_schemathesis(self, door: "Door", folder: Path) -> Known:
        """The names that exist from the first request to the last."""

    def afterwards(self, door: "Door", folder: Path) -> list[str]:
        """Faults of the server after all requests; empty if it still works."""


def run(subject: Subject, cases: int, seed: int, progress: Progress, say: Say) -> Tally:
    tally = Tally("requests")
    with (
        tempfile.TemporaryDirectory() as name,
        running_dev(Path(name) / "data", subject.bookies) as dev,
        closing(Door(subject.base(dev.said))) as door,
    ):
        folder = Path(name) / "data"
        document = without_references(door.json("GET", "/openapi.json"))
        answers: Counter[str] = Counter()
        for number in range(cases):
            if number % _LIFE == 0:
                known = subject.begin(door, number, folder)
            case = case_of(document, random.Random(f"{seed}:{number}"), known, subject.often)
            wrong = _judge(door, document, case, answers)
            if wrong:
                tally.failed += 1
                if tally.failed <= _SHOWN:
                    say(f"{number}: {case}\n    {wrong}")
            else:
                tally.passed += 1
            progress(number + 1, cases)
        for text in subject.afterwards(door, folder):
            tally.failed += 1
            say(text)
        told = ", ".join(f"{status} {count:,}" for status, count in sorted(answers.items()))
        say(f"answers: {told}")
    return tally


class Door:
    """One connection, opened again when it is closed."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._connection = http.client.HTTPConnection(place, timeout=_PATIENCE_S)

    def ask(self, case: Case) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body; an endless response is read only up to its head."""
        self._connection.putrequest(case.method, case.path, skip_accept_encoding=True)
        for name, value in case.headers.items():
            self._connection.putheader(name, value.encode("latin-1"))
        self._connection.putheader("content-length", str(len(case.body)))
        self._connection.endheaders(case.body)
        answer = self._connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        if headers.get("content-type", "").partition(";")[0] in _STREAMS:
            self.close()
            return answer.status, headers, b""
        body = answer.read()
        if answer.will_close:
            self.close()
        return answer.status, headers, body

    def json(self, method: str, path: str, body: bytes | dict[str, Any] = b"") -> Any:
        """Returns the JSON of a successful response. Retries like `tries`."""
        status, found = self.tries(method, path, body)
        assert status < 300, (method, path, status, found)
        return json.loads(found) if found else None

    def tries(
        self, method: str, path: str, body: bytes | dict[str, Any] = b""
    ) -> tuple[int, bytes]:
        """Returns any response. `body` is the bytes of a record or a dict of fields."""
        kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"content-type": kind} if data else {}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            status, _, found = self.ask(Case("", method, path, headers, data))
            if status != 503 or time.monotonic() > deadline:
                return status, found
            time.sleep(_PAUSE_S)  # The server may have lost its metadata store for a moment.

    def close(self) -> None:
        self._connection.close()


def _judge(door: Door, document: Json, case: Case, answers: Counter[str]) -> str:
    """What is wrong with the response; empty if nothing."""
    try:
        status, headers, body = door.ask(case)
    except (OSError, http.client.HTTPException) as error:
        door.close()
        return f"no answer: {error!r}"
    answers[str(status)] += 1
    kind = headers.get("content-type", "").partition(";")[0]
    path, method = _operation(document, case)
    said = document["paths"][path][method]["responses"]
    if str(status) not in said and str(status) not in _BY_HTTP:
        return f"{status} is not documented: {body[:300]!r}"
    if status >= 300 and status != 304:
        return _judge_problem(status, kind, body, case)
    schema = said.get(str(status), {}).get("content", {}).get(kind, {}).get("schema")
    if kind == "application/json" and schema:
        return "; ".join(misfits(json.loads(body), schema))
    return ""


def _operation(document: Json, case: Case) -> tuple[str, str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation["operationId"] == case.operation:
                return path, method
    raise AssertionError(case.operation)


def _judge_problem(status: int, kind: str, body: bytes, case: Case) -> str:
    if case.method == "HEAD":
        return ""
    if kind != _PROBLEM:
        return f"a refusal that is no problem: {status} {kind} {body[:200]!r}"
    problem = json.loads(body)
    reason = problem["reason"]
    if reason not in _REASONS or problem["status"] != status:
        return f"{status} {reason} is not of the table"
    if reason == "INTERNAL" or (status >= 500 and _REASONS[reason] < 500 and status != 503):
        return f"a surprise: {body[:300]!r}"
    if status != _REASONS[reason] and str(status) not in (*_BY_HTTP, "503"):
        return f"{status} is not the status of {reason}"
    if not {"type", "title", "detail", "outcome", "retryable"} <= problem.keys():
        return f"an incomplete problem: {body[:300]!r}"
    return ""

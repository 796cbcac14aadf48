"""Random requests to a real server (`python -m tests rest`): each is answered, and as OpenAPI says.

The server is a log server, or with `--of cluster` the management of a cluster (`cluster_subject.py`).

an answer       comes in time, with a status that is documented, and never as a surprise (INTERNAL)
a good one      is of its schema
a refusal       is a problem with a reason of the table, its status, its outcome
the server      serves as before when all is over, and holds no reader
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
    60  # Requests, then there are new logs: the others are sealed, deleted, out of order.
)

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


class Subject(Protocol):
    """What the requests are sent to, on a `rollbook dev` of its own."""

    bookies: int
    often: str  # How paths end that are asked most often.
    hooks: str  # The file with what Schemathesis has to know.

    def base(self, said: str) -> str:
        """Where it is, `host:port`, by what `rollbook dev` printed."""

    def begin(self, door: "Door", number: int, folder: Path) -> Known:
        """Puts right what earlier requests did. Returns what is there."""

    def begin_for_schemathesis(self, door: "Door", folder: Path) -> Known:
        """What is there, from the first request to the last."""

    def afterwards(self, door: "Door", folder: Path) -> list[str]:
        """What does not work any more."""


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
    """One connection, made again when it is over."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._connection = http.client.HTTPConnection(place, timeout=_PATIENCE_S)

    def ask(self, case: Case) -> tuple[int, dict[str, str], bytes]:
        """Of an answer that goes on its head alone."""
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
        """Of a server that is not drained or out of order permanently."""
        status, found = self.tries(method, path, body)
        assert status < 300, (method, path, status, found)
        return json.loads(found) if found else None

    def tries(
        self, method: str, path: str, body: bytes | dict[str, Any] = b""
    ) -> tuple[int, bytes]:
        """Its answer, whatever that is. `body`: bytes of a record, or fields."""
        kind = "application/json" if isinstance(body, dict) else "application/octet-stream"
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"content-type": kind} if data else {}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            status, _, found = self.ask(Case("", method, path, headers, data))
            if status != 503 or time.monotonic() > deadline:
                return status, found
            time.sleep(_PAUSE_S)  # It may have lost touch with its metadata for a moment.

    def close(self) -> None:
        self._connection.close()


def _judge(door: Door, document: Json, case: Case, answers: Counter[str]) -> str:
    """What is wrong with the answer; empty: nothing."""
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

"""The unmodified Java client, for tests in Python: plain methods around `java/…/Puppet.java`.

    client = cluster.puppet().connect(cluster.metadata, Protocol.V2)
    ledger = client.create(Shape(3, 2, 2), Digest.CRC32C)
    ledger.append([b"hello"])

An exception of the client is raised as a `JavaError` with the name of its class. A call waits for
its response; `start_…` returns a `Pending` at once, whose `result()` waits.
"""

import base64
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tests.support.processes import Child

PATIENCE_S: Final = 60.0  # For each answer, on a busy machine.
PASSWORD: Final = "open sesame"


class Protocol(Enum):
    V2 = "v2"
    V3 = "v3"


class Digest(Enum):
    """Digest types, with the names that the client uses."""

    CRC32 = "CRC32"
    CRC32C = "CRC32C"
    MAC = "MAC"
    DUMMY = "DUMMY"


@dataclass(frozen=True, slots=True)
class Shape:
    ensemble: int
    write: int
    ack: int

    def __str__(self) -> str:
        return f"{self.ensemble}/{self.write}/{self.ack}"


@dataclass(frozen=True, slots=True)
class Entry:
    entry_id: int
    length: int  # Total of all payloads up to and including this one.
    payload: bytes


class JavaError(Exception):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Pending:
    """A call that may still wait for its response."""

    def __init__(self, puppet: "Puppet", number: int) -> None:
        self._puppet = puppet
        self._number = number

    def result(self, timeout_s: float = PATIENCE_S) -> Any:
        return self._puppet.answer(self._number, timeout_s)


class Puppet:
    """One JVM with any number of clients."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._numbers = itertools.count()
        self._answers: dict[int, dict[str, Any]] = {}  # Received before they were asked for.

    def connect(
        self, metadata: str, protocol: Protocol, properties: Mapping[str, str | int] = {}
    ) -> "Client":
        name = f"client {next(self._numbers)}"
        everything = {
            "metadataServiceUri": metadata,
            "zkTimeout": 10_000,
            "useV2WireProtocol": str(protocol is Protocol.V2).lower(),
            "addEntryTimeoutSec": 20,  # Tests of time-outs are elsewhere.
            "readEntryTimeoutSec": 20,
            **properties,
        }
        self.call("connect", client=name, properties=everything)
        return Client(self, name)

    def call(self, do: str, **arguments: Any) -> Any:
        return self.start(do, **arguments).result()

    def start(self, do: str, **arguments: Any) -> Pending:
        number = next(self._numbers)
        self._child.say(json.dumps({"id": number, "do": do, **arguments}))
        return Pending(self, number)

    def answer(self, number: int, timeout_s: float) -> Any:
        while number not in self._answers:
            answer = json.loads(self._child.line(timeout_s))
            self._answers[answer["id"]] = answer
        answer = self._answers.pop(number)
        if "error" in answer:
            raise JavaError(answer["error"], answer["text"])
        return answer["value"]


class Client:
    """A `BookKeeper` and its `BookKeeperAdmin`."""

    def __init__(self, puppet: Puppet, name: str) -> None:
        self._puppet = puppet
        self._name = name

    def create(
        self,
        shape: Shape,
        digest: Digest = Digest.CRC32C,
        *,
        password: str = PASSWORD,
        deferred_sync: bool = False,
        numbered: bool = False,
    ) -> "Ledger":
        """`numbered`: the writer gives the entry id of each payload."""
        return Ledger(
            self._puppet,
            self._call(
                "create",
                ensemble=shape.ensemble,
                write=shape.write,
                ack=shape.ack,
                digest=digest.value,
                password=password,
                deferred_sync=deferred_sync,
                numbered=numbered,
            ),
        )

    def open(
        self,
        ledger_id: int,
        digest: Digest = Digest.CRC32C,
        *,
        password: str = PASSWORD,
        recover: bool,
    ) -> "Ledger":
        """With recovery it fences the writer, finds the end and closes the ledger."""
        opening = self.start_open(ledger_id, digest, password=password, recover=recover)
        return Ledger(self._puppet, opening.result())

    def start_open(
        self,
        ledger_id: int,
        digest: Digest = Digest.CRC32C,
        *,
        password: str = PASSWORD,
        recover: bool,
    ) -> Pending:
        return self._puppet.start(
            "open",
            client=self._name,
            ledger=ledger_id,
            digest=digest.value,
            password=password,
            recover=recover,
        )

    def delete(self, ledger_id: int) -> None:
        self._call("delete", ledger=ledger_id)

    def metadata(self, ledger_id: int) -> dict[str, Any]:
        found: dict[str, Any] = self._call("metadata", ledger=ledger_id)
        return found

    def ledgers(self) -> list[int]:
        found: list[int] = self._call("ledgers")
        return found

    def bookies(self) -> dict[str, list[str]]:
        """Bookie ids by `writable`, `read_only` and `all`."""
        found: dict[str, list[str]] = self._call("bookies")
        return found

    def disk_bytes(self) -> dict[str, dict[str, int]]:
        """`free` and `total` by bookie."""
        found: dict[str, dict[str, int]] = self._call("disk_bytes")
        return found

    def entries_on(self, bookie: str, ledger_id: int, last: int) -> list[int]:
        """The entries up to `last` that a bookie lists; checks that it has no others."""
        found = self._call("entries_on", bookie=bookie, ledger=ledger_id, last=last)
        entries: list[int] = found["entries"]
        assert found["total"] == len(entries)
        return entries

    def replace_bookie(self, bookie: str, ledger_id: int) -> None:
        """Copies a lost bookie's entries of a ledger to another bookie, and updates the metadata."""
        self._call("replace_bookie", bookie=bookie, ledger=ledger_id)

    def fence_one(self, bookie: str, ledger_id: int, *, entry: int, password: str) -> int:
        """Sends a fencing read to one bookie; returns the entry's size on the wire."""
        found: int = self._call(
            "fence_one", bookie=bookie, ledger=ledger_id, entry=entry, password=password
        )
        return found

    def _call(self, do: str, **arguments: Any) -> Any:
        return self._puppet.call(do, client=self._name, **arguments)


class Ledger:
    """A `LedgerHandle`."""

    def __init__(self, puppet: Puppet, held: Mapping[str, int]) -> None:
        self._puppet = puppet
        self._handle = held["handle"]
        self.ledger_id = held["ledger"]
        self.last_confirmed = held["last_confirmed"]  # At the time of opening, like `length`.
        self.length = held["length"]

    def append(self, payloads: Sequence[bytes]) -> list[int]:
        """Sends all before it waits for the first. Returns their entry ids."""
        found: list[int] = self.start_append(payloads).result()
        return found

    def start_append(self, payloads: Sequence[bytes]) -> Pending:
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        return self._start("append", payloads=encoded)

    def write(self, payloads: Mapping[int, bytes]) -> list[int]:
        """Takes payloads by entry id, and sends them in that order."""
        encoded = [base64.b64encode(payload).decode() for payload in payloads.values()]
        found: list[int] = self._call("write", entries=list(payloads), payloads=encoded)
        return found

    def force(self) -> None:
        self._call("force")

    def close(self) -> None:
        self._call("close")

    def read(self, first: int, last: int) -> list[Entry]:
        return _entries(self._call("read", how="confirmed", first=first, last=last))

    def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        return _entries(self._call("read", how="unconfirmed", first=first, last=last))

    def read_batch(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Sends one request, which may return fewer entries."""
        found = self._call("read", how="batch", first=first, last=last, bytes_max=bytes_max)
        return _entries(found)

    def read_last_confirmed(self) -> int:
        found: int = self._call("read_last_confirmed")
        return found

    def read_explicit_last_confirmed(self) -> int:
        found: int = self._call("read_explicit_last_confirmed")
        return found

    def start_await_entry(self, entry_id: int, timeout_ms: int, *, parallel: bool) -> Pending:
        """A long poll; `awaited` reads its result."""
        return self._start("await_entry", entry=entry_id, timeout_ms=timeout_ms, parallel=parallel)

    def _call(self, do: str, **arguments: Any) -> Any:
        return self._start(do, **arguments).result()

    def _start(self, do: str, **arguments: Any) -> Pending:
        return self._puppet.start(do, handle=self._handle, **arguments)


def awaited(poll: Pending) -> tuple[int, list[Entry]]:
    """The result of a long poll: the last confirmed entry id, and the entry, if any."""
    found = poll.result()
    return found["last_confirmed"], _entries(found["entries"])


def _entries(found: list[dict[str, Any]]) -> list[Entry]:
    return [
        Entry(entry["entry"], entry["length"], base64.b64decode(entry["payload"]))
        for entry in found
    ]

"""Works like a browser's EventSource: follows one URL and reconnects with the last id received.

with EventSource("127.0.0.1:7480", "/v1/namespaces/default/logs/a/records") as source:
    source.wait_for(3)
    source.values
"""

import http.client
import json
import threading
import time
from types import TracebackType
from typing import Final, Self

_PAUSE_S: Final = 0.05
_SILENCE_S: Final = 10.0  # Longer than the interval of heartbeats.


class EventSource:
    def __init__(self, place: str, path: str) -> None:
        self.values: list[str] = []  # The values of all records in the order received.
        self.connections = 0
        self.refusals: list[int] = []  # Statuses at which a browser would give up.
        self._place = place
        self._path = path
        self._last_id = ""
        self._is_over = False
        self._told = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="event-source")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends when the next event arrives or the connection ends."""
        self._is_over = True
        self._thread.join()

    def wait_for(self, count: int, patience_s: float = 60.0) -> None:
        with self._told:
            assert self._told.wait_for(lambda: len(self.values) >= count, patience_s), (
                f"{len(self.values)} records of {count} were told"
            )

    def _follow(self) -> None:
        while not self._is_over:
            connection = http.client.HTTPConnection(self._place, timeout=_SILENCE_S)
            headers = {"accept": "text/event-stream"}
            if self._last_id:
                headers["last-event-id"] = self._last_id
            try:
                connection.request("GET", self._path, b"", headers)
                answer = connection.getresponse()
                if answer.status == 200:
                    self.connections += 1
                    self._hear(answer)
                else:
                    self.refusals.append(answer.status)
            except (OSError, http.client.HTTPException):
                pass  # It reconnects.
            finally:
                connection.close()
            time.sleep(_PAUSE_S)

    def _hear(self, answer: http.client.HTTPResponse) -> None:
        """An event and its id count when its empty line has arrived."""
        fields: dict[str, str] = {}
        while not self._is_over and (line := answer.readline()).endswith(b"\n"):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            with self._told:
                self._last_id = fields.get("id", self._last_id)
                if fields.get("event") == "records":
                    records = json.loads(fields["data"])["records"]
                    self.values += [each["data"] for each in records]
                    self._told.notify_all()
            fields = {}

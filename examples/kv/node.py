"""One node of the key-value store: `python -m examples.kv.node LOG-URL HOST:PORT [SNAPSHOT-EVERY]`.

    GET /KEY                   its value, on any node; 404
    PUT /KEY                   the body becomes its value; `?expect=OLD`: only if it is OLD now, else 409
    DELETE /KEY
    GET /                      who leads, and how far this node is

Only the leader takes changes; the others answer 307 with its address (`curl -L` follows). 503: not done,
nobody leads at present; 504: it may be done.
"""

import json
import signal
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import rollbook
from examples.kv.store import Store
from rollbook import wal
from rollbook.proto.errors import Outcome, RollbookError

SNAPSHOT_EVERY = 1000  # Records.


class Node:
    def __init__(self, machine: wal.StateMachine, store: Store) -> None:
        self.machine, self.store = machine, store
        self.term: wal.Term | None = None

    def get(self, key: str) -> str | None:
        """The value after every write that any node has acknowledged before this call."""
        return self.machine.read(lambda: self.store.values.get(key))

    def change(self, command: dict[str, Any]) -> Any:
        assert self.term is not None
        return self.term.propose(json.dumps(command).encode())

    @property
    def leads(self) -> bool:
        return self.term is not None and not self.term.is_over

    def campaign(self) -> None:
        """Leads whenever it is this node's turn."""
        while True:
            with self.machine.lead() as self.term:
                print(f"leads since epoch {self.term.epoch}", flush=True)
                print(f"leads no more: {self.term.over()}", flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, node: Node, *arguments: Any) -> None:
        self.node = node
        super().__init__(*arguments)

    def do_GET(self) -> None:  # As http.server has it, here and below.
        machine, key = self.node.machine, self._key()
        if not key:
            status = {
                "leader": machine.leader(),
                "applied": machine.applied,
                "epoch": machine.epoch,
            }
            self._answer(200, json.dumps(status))
        elif (value := self.node.get(key)) is None:
            self._answer(404, "")
        else:
            self._answer(200, value)

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        command = {"do": "put", "key": self._key(), "value": value}
        if expect := parse_qs(urlsplit(self.path).query).get("expect"):
            command |= {"do": "cas", "expect": expect[0]}
        self._change(command)

    def do_DELETE(self) -> None:
        self._change({"do": "delete", "key": self._key()})

    def _change(self, command: dict[str, Any]) -> None:
        if not self.node.leads:
            self._answer(*self._elsewhere())
            return
        is_done, found = self.node.change(command)
        self._answer(200 if is_done else 409, found or "")

    def _elsewhere(self) -> tuple[int, str, str]:
        leader = self.node.machine.leader()
        return (307, "", f"http://{leader}{self.path}") if leader else (503, "nobody leads", "")

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix("/"))

    def _answer(self, status: int, text: str, location: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def handle_one_request(self) -> None:
        try:
            try:
                super().handle_one_request()
            except RollbookError as error:
                self._answer(503 if error.outcome is Outcome.NOT_APPLIED else 504, str(error))
        except ConnectionError:  # The client has hung up.
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


def main() -> None:
    url, address, *rest = sys.argv[1:]
    snapshot_every = int(rest[0]) if rest else SNAPSHOT_EVERY
    host, _, port = address.rpartition(":")
    store = Store()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ends in order, and hands over.
    try:
        with (
            rollbook.connect(url, wait_s=30) as client,
            wal.StateMachine(
                client, "kv", store, holder=address, snapshot_every=snapshot_every
            ) as machine,
        ):
            node = Node(machine, store)
            door = ThreadingHTTPServer((host, int(port)), partial(Handler, node))
            door.daemon_threads = True
            Thread(target=door.serve_forever, daemon=True).start()
            print(f"ready: {address}", flush=True)
            node.campaign()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()

"""What is replicated: a dictionary, and the commands that change it."""

import json
from typing import Any


class Store:
    """A command is JSON: `{"do": "put" | "cas" | "delete", "key": …, "value": …, "expect": …}`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, command: bytes) -> Any:
        """Whether it was done, and what was there."""
        told = json.loads(command)
        key, found = told["key"], self.values.get(told["key"])
        if told["do"] == "cas" and found != told["expect"]:
            return False, found
        if told["do"] == "delete":
            self.values.pop(key, None)
        else:
            self.values[key] = told["value"]
        return True, found

    def snapshot(self) -> bytes:
        return json.dumps(self.values).encode()

    def restore(self, snapshot: bytes) -> None:
        self.values = json.loads(snapshot)

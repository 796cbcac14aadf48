"""The replicated state: a dictionary, and the commands that change it."""

import json
from typing import Any


class Store:
    """A command is JSON: `{"do": "put" | "cas" | "delete", "key": …, "value": …, "expect": …}`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def apply(self, command: bytes) -> Any:
        """Whether it was done, and what was there."""
        change = json.loads(command)
        key, found = change["key"], self.values.get(change["key"])
        if change["do"] == "cas" and found != change["expect"]:
            return False, found
        if change["do"] == "delete":
            self.values.pop(key, None)
        else:
            self.values[key] = change["value"]
        return True, found

    def snapshot(self) -> bytes:
        return json.dumps(self.values).encode()

    def restore(self, snapshot: bytes) -> None:
        self.values = json.loads(snapshot)

"""Management of a cluster as the target of random requests: three bookies with ledgers of no log.

Requests may leave drains, read-only bookies, cookies of unknown bookies, or recovery switched off.
This is undone before each batch of requests, over the same routes.
"""

import asyncio
import http.client
import re
import time
from pathlib import Path
from typing import Any, Final

from rollbook.ledger.open_client import connect
from tests.rest.cases import Known
from tests.rest.run import Door

_API: Final = "/api/v1"
_BOOKIES: Final = ("bk-1", "bk-2", "bk-3")

_NOBODY: Final = "http://127.0.0.1:9/"  # No server listens there.
_LEDGERS: Final = 3
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.1


class ClusterSubject:
    bookies = len(_BOOKIES)
    often = ""
    hooks = "schemathesis_cluster_hooks.py"

    def base(self, said: str) -> str:
        (found,) = re.findall(r"(?m)^dashboard +http://(\S+)$", said)
        return str(found)

    def begin(self, door: Door, number: int, folder: Path) -> Known:
        _put_right(door)
        begun = door.json("POST", f"{_API}/recovery/bookies", {"bookies": _gone(door, number)})
        callback = door.json("POST", f"{_API}/callbacks", {"url": _NOBODY})
        ids = [str(each) for each in asyncio.run(_make_ledgers(folder))]
        return {
            "bookie_id": (*_BOOKIES, "bk-9"),
            "bookie": (*_BOOKIES, "bk-9"),
            "ledger_id": (*ids, "7000000"),
            "callback_id": (callback["id"], "0" * 32),
            "operation_id": (begun["id"], "0" * 32),
            "type": ("rw", "ro"),
        }

    def begin_for_schemathesis(self, door: Door, folder: Path) -> Known:
        return self.begin(door, 0, folder)

    def afterwards(self, door: Door, folder: Path) -> list[str]:
        try:
            _put_right(door)
            asyncio.run(_make_ledgers(folder))
            health = door.json("GET", f"{_API}/cluster/health")
        except (OSError, http.client.HTTPException, AssertionError) as error:
            return [f"the cluster does not serve afterwards: {error!r}"]
        return [] if health["bookies"].startswith("3 of 3") else [f"afterwards: {health}"]


def _gone(door: Door, number: int) -> list[str]:
    """Creates a cookie of a bookie that never existed, whose recovery is an operation."""
    name = f"gone-{number}"
    text = f'5\nbookieHost: "{name}"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'
    door.json("PUT", f"{_API}/cookies/{name}", {"text": text, "version": None})
    return [name]


def _put_right(door: Door) -> None:
    """Repairs the cluster until exactly three bookies are there and writable."""
    door.json("PUT", f"{_API}/recovery/switch", {"enabled": True})
    for callback in door.json("GET", f"{_API}/callbacks")["callbacks"]:
        door.tries("DELETE", f"{_API}/callbacks/{callback['id']}")
    deadline = time.monotonic() + _PATIENCE_S
    while wrong := [each for each in _rows(door) if not _is_right(each)]:
        assert time.monotonic() < deadline, wrong
        for row in wrong:
            _mend(door, row)
        time.sleep(_PAUSE_S)


def _rows(door: Door) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = door.json("GET", f"{_API}/bookies?limit=1000&after={after}")
        found += page["bookies"]
        after = page["next_after"]
    return found


def _is_right(row: dict[str, Any]) -> bool:
    return row["id"] in _BOOKIES and (row["state"], row["lifecycle"]) == ("writable", "active")


def _mend(door: Door, row: dict[str, Any]) -> None:
    """Makes a bookie writable. If an operation drains it again, the next check finds that."""
    where = f"{_API}/bookies/{row['id']}"
    if row["id"] not in _BOOKIES:
        door.tries("DELETE", where)
    elif row["lifecycle"] != "active":
        door.tries("PUT", f"{where}/lifecycle", {"state": "active"})
    else:
        door.tries("PUT", f"{where}/pages/readonly", {"readOnly": False})


async def _make_ledgers(folder: Path) -> list[int]:
    """Creates ledgers, one of which is left open without a writer."""
    found: list[int] = []
    async with connect(f"sqlite://{folder}/metadata.db") as ledgers:
        for number in range(_LEDGERS):
            writer = await ledgers.create(ensemble=2, write=2)  # One of three can be drained.
            writer.append_many([b"%d" % each for each in range(10)])
            await writer.flush()
            await (writer.close() if number else writer.stop())
            found.append(writer.ledger_id)
    return found

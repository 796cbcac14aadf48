"""A log server as the target of random requests.

Each batch has new logs. The earlier logs may be sealed or deleted.
"""

import http.client
from pathlib import Path

from rollbook.logservice.stats import NAMESPACE
from tests.rest.cases import Known
from tests.rest.run import Door


class LogSubject:
    bookies = 1
    often = "/records"
    hooks = "schemathesis_hooks.py"

    def base(self, said: str) -> str:
        place = next(line for line in said.splitlines() if line.startswith("rest "))
        return place.split()[1].removeprefix("http://").removesuffix("/v1")

    def begin(self, door: Door, number: int, _folder: Path) -> Known:
        names = [f"{name}-{number}" for name in ("a", "b.c", "d_e")]
        door.json("POST", "/v1/servers/log-1:resume")
        for name in names:
            door.json("PUT", f"/v1/namespaces/default/logs/{name}")
        door.json("POST", f"/v1/namespaces/default/logs/{names[0]}/records", b"first")
        return {
            "namespace": ("default",),
            "log": names,
            "cursor": names,
            "server": ("log-1", "log-9"),
            "offset": ("0", "1", "2", "3"),
        }

    def begin_for_schemathesis(self, door: Door, _folder: Path) -> Known:
        """Returns one log that is never sealed or deleted."""
        door.json("PUT", "/v1/namespaces/default/logs/standing")
        return {"namespace": ["default"], "log": ["standing"], "server": ["log-1"]}

    def afterwards(self, door: Door, _folder: Path) -> list[str]:
        wrong = []
        try:
            door.json("POST", "/v1/servers/log-1:resume")
            log = "/v1/namespaces/default/logs/afterwards"
            door.json("PUT", log)
            door.json("POST", f"{log}/records", b"still here")
            found = door.json("GET", f"{log}/records")["records"]
            if [each["data"] for each in found] != ["still here"]:
                wrong.append(f"what was appended afterwards is {found}")
            stats = door.json("GET", "/v1/stats")["stats"]
            if readers := stats[f"{NAMESPACE}_readers"]:
                wrong.append(f"{readers:g} readers were left behind")
        except (OSError, http.client.HTTPException, AssertionError) as error:
            wrong.append(f"the server does not serve afterwards: {error!r}")
        return wrong

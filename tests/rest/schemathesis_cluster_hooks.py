"""Hooks that tell Schemathesis the bookies, ledgers and operations that exist in a cluster.

Schemathesis' environment loads this (`make schemathesis`), so it imports nothing from Rollbook.
Names that Schemathesis generates belong to no bookie, ledger or operation.
"""

import json
import os
from typing import Any, Final
from zlib import crc32

import schemathesis

_PLACES: Final = (("path", "path_parameters"), ("query", "query"))
_KNOWN: Final = json.loads(os.environ["ROLLBOOK_KNOWN"])
_UNDECLARED: Final = "x-schemathesis-unknown-property"


def map_case(_context: Any, case: Any) -> Any:
    """Keeps values that are invalid on purpose, because Schemathesis expects a refusal.

    Ids from links stay, too: they name objects that were just created.
    """
    if case.meta and case.meta.phase.name.value == "stateful":
        return case
    for place, name in _PLACES:
        found = getattr(case, name)
        if found and not (case.meta and case.meta.is_negative_at(place)):
            setattr(case, name, _of_what_is_there(found))
    return case


def _of_what_is_there(found: dict[str, Any]) -> dict[str, Any]:
    """Uses existing names in two of three cases, also in queries, where BookKeeper has ledger ids."""
    chance = crc32(repr(sorted(found.items())).encode("utf-8", "backslashreplace"))
    if chance % 3 == 0:
        return found
    return {
        name: _KNOWN[name][chance // 3 % len(_KNOWN[name])] if name in _KNOWN else value
        for name, value in found.items()
    }


def filter_case(_context: Any, case: Any) -> bool:
    """HTTP servers ignore undeclared headers, so such cases are not bad requests."""
    return _UNDECLARED not in (case.headers or {})


for hook in (map_case, filter_case):
    schemathesis.hook(hook)

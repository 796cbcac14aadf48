"""What Schemathesis has to know of a cluster's management: what is there to ask of.

Its own environment loads this (`make schemathesis`), so nothing of ours is imported here. Names that it makes up are
those of no bookie, ledger or operation.
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
    """What is wrong on purpose stays wrong: put right, it would be expected to be refused, and answered. Ids that a link
    supplies stay, too: they are those of what was just made."""
    if case.meta and case.meta.phase.name.value == "stateful":
        return case
    for place, name in _PLACES:
        found = getattr(case, name)
        if found and not (case.meta and case.meta.is_negative_at(place)):
            setattr(case, name, _of_what_is_there(found))
    return case


def _of_what_is_there(found: dict[str, Any]) -> dict[str, Any]:
    """Two of three. Ledgers are in queries, too: BookKeeper's paths have them there."""
    chance = crc32(repr(sorted(found.items())).encode("utf-8", "backslashreplace"))
    if chance % 3 == 0:
        return found
    return {
        name: _KNOWN[name][chance // 3 % len(_KNOWN[name])] if name in _KNOWN else value
        for name, value in found.items()
    }


def filter_case(_context: Any, case: Any) -> bool:
    """A header that nobody declared is let through, as HTTP wants it: that is no bad request."""
    return _UNDECLARED not in (case.headers or {})


for hook in (map_case, filter_case):
    schemathesis.hook(hook)

"""What Schemathesis has to know of a cluster's management: what is there to ask of.

Its own environment loads this (`make schemathesis`), so nothing of ours is imported here. Names that it makes up are
those of no bookie, ledger or operation.
"""

import json
import os
from typing import Any, Final
from zlib import crc32

import schemathesis

_KNOWN: Final = json.loads(os.environ["ROLLBOOK_KNOWN"])
_UNDECLARED: Final = "x-schemathesis-unknown-property"


def map_path_parameters(_context: Any, found: Any) -> Any:
    """Two of three are of what is there."""
    chance = crc32(repr(sorted((found or {}).items())).encode())
    if not found or chance % 3 == 0:
        return found
    return {
        name: _KNOWN[name][chance // 3 % len(_KNOWN[name])] if name in _KNOWN else value
        for name, value in found.items()
    }


def map_query(context: Any, found: Any) -> Any:
    """Of ledgers, since BookKeeper's paths have them there."""
    return map_path_parameters(context, found)


def filter_case(_context: Any, case: Any) -> bool:
    """A header that nobody declared is let through, as HTTP wants it: that is no bad request."""
    return _UNDECLARED not in (case.headers or {})


for hook in (map_path_parameters, map_query, filter_case):
    schemathesis.hook(hook)

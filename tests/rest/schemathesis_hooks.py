"""Hooks that tell Schemathesis how lines are sent and which logs exist.

Schemathesis' environment loads this (`make schemathesis`), so it imports nothing from Rollbook.
Names that Schemathesis generates belong to no log, and after its first `:drain` all requests would
be refused.
"""

import json
import os
import urllib.request
from typing import Any, Final
from zlib import crc32

import schemathesis

_KNOWN: Final = {name: found[0] for name, found in json.loads(os.environ["ROLLBOOK_KNOWN"]).items()}
_WAITS_MS: Final = "500"  # The time-out of cases without one; the server's default is 30 s.
_PATIENCE_S: Final = 40.0
_UNDECLARED: Final = "x-schemathesis-unknown-property"


def lines(_context: Any, value: Any) -> dict[str, bytes]:
    """Encodes half of the values as records, and sends the others unchanged."""
    text = value if isinstance(value, str) else json.dumps(value)
    if crc32(text.encode("utf-8", "surrogatepass")) % 2:
        text = "\n".join(json.dumps({"text": line}) for line in text.split("\n"))
    return {"data": text.encode("utf-8", "surrogatepass")}


def map_path_parameters(context: Any, found: Any) -> Any:
    """Uses existing names in every other request."""
    operation = context.operation
    is_an_end = operation.path.endswith(":seal") or (
        operation.method == "delete" and operation.path.endswith("/logs/{log}")
    )
    if not found or is_an_end or crc32(repr(sorted(found.items())).encode()) % 2:
        return found
    return {name: _KNOWN.get(name, value) for name, value in found.items()}


def map_headers(_context: Any, found: Any) -> Any:
    if any(name.lower() == "log-timeout-ms" for name in found or ()):
        return found
    return {**(found or {}), "Log-Timeout-Ms": _WAITS_MS}


def filter_case(_context: Any, case: Any) -> bool:
    """HTTP servers ignore undeclared headers, so such cases are not bad requests."""
    return _UNDECLARED not in (case.headers or {})


def after_call(_context: Any, case: Any, response: Any) -> None:
    """Makes a drained server accept logs again."""
    if response.status_code < 300 and case.path.endswith(":drain"):
        base = response.request.url.partition("/v1/")[0]
        resume = urllib.request.Request(
            f"{base}/v1/servers/{_KNOWN['server']}:resume", method="POST"
        )
        with urllib.request.urlopen(resume, timeout=_PATIENCE_S):
            pass


schemathesis.serializer("application/x-ndjson")(lines)
for hook in (map_path_parameters, map_headers, filter_case, after_call):
    schemathesis.hook(hook)

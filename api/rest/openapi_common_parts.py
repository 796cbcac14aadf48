"""Adds to the OpenAPI document what all operations share: authentication, refusals, headers, examples.

It is made from the table of errors and from the tables below; routes describe only what is their own. In
these tables, a header whose name ends in `?` may be missing; every other header is in each such response.
Headers and query fields are never null: without a value, they are left out.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from rollbook.proto.errors import InvalidRequest, RollbookError, Throttled, Unauthorized

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "format": "int64"}
_FLAG: Final = {"type": "string", "enum": ["true", "false"]}
_UID: Final = "5c1c9a1ef0e34b0c8d1f2a3b4c5d6e7f"
_HEADERS: Final[dict[str, tuple[dict[str, Any], str, Any]]] = {
    "ETag": (_TEXT, "The version of the returned object, for If-Match and If-None-Match.", '"3"'),
    "Location": (
        _TEXT,
        "The URL of the result, or of the owner.",
        "/v1/namespaces/default/logs/orders/records/1700",
    ),
    "Retry-After": (_NUMBER, "The seconds to wait before a retry.", 1),
    "WWW-Authenticate": (_TEXT, "The required authentication.", 'Bearer realm="rollbook"'),
    "Log-Epoch": (_NUMBER, "The owner's epoch.", 4),
    "Log-Event-Time-Us": (_NUMBER, "The event time that the writer set.", 1_795_219_200_000_000),
    "Log-First-Offset": (_NUMBER, "The first record's offset.", 1700),
    "Log-Head": (_NUMBER, "The offset of the first record that is kept.", 0),
    "Log-Key": (_TEXT, "The record's key.", "1"),
    "Log-Meta-*": (_TEXT, "The record's headers, one for each name.", "till 4"),
    "Log-Next-Offset": (_NUMBER, "The offset after the last record.", 1701),
    "Log-Offset": (_NUMBER, "The record's offset.", 1700),
    "Log-Omitted": (
        _NUMBER,
        "The number of the record's key and headers that do not fit in HTTP headers.",
        1,
    ),
    "Log-Owner": (_TEXT, "The gRPC address of the log's owner.", "log-1:7400"),
    "Log-Sealed": (_FLAG, "Whether the log is sealed, so that no record can be appended.", "false"),
    "Log-Tail": (_NUMBER, "The offset of the next record to be appended.", 1703),
    "Log-Timestamp-Us": (_NUMBER, "When the record was appended.", 1_795_219_200_000_000),
    "Log-Uid": (_TEXT, "The log's uid. A later log of the same name has a different uid.", _UID),
    "Log-Up-To-Date": (_FLAG, "Whether the response reaches the tail.", "false"),
}
_OF_TAILS: Final = ("Log-Head", "Log-Tail", "Log-Sealed", "Log-Epoch", "Log-Owner", "Log-Uid")
_BY_OPERATION: Final[dict[str, tuple[str, ...]]] = {
    "append": ("Location", "Log-Next-Offset", "Log-Epoch"),
    "read": (
        "Log-Head?",
        "Log-Tail?",
        "Log-First-Offset?",
        "Log-Next-Offset?",
        "Log-Up-To-Date?",
        "Log-Sealed?",
        "Log-Uid?",  # A stream has only this one of these headers.
    ),
    "read_record": (
        "ETag",
        "Log-Offset",
        "Log-Timestamp-Us",
        "Log-Uid",
        "Log-Key?",
        "Log-Meta-*?",
        "Log-Event-Time-Us?",
        "Log-Omitted?",
    ),
    **dict.fromkeys(("barrier", "head_log"), _OF_TAILS),
    "get_tail": tuple(
        f"{name}?" for name in _OF_TAILS
    ),  # A stream of tails has none of these headers.
    "ensure_log": ("ETag", "Location?", "Log-Uid"),
    **dict.fromkeys(("get_log", "update_log"), ("ETag", "Log-Uid")),
    **dict.fromkeys(("get_cursor", "commit_cursor"), ("ETag",)),
    **dict.fromkeys(
        ("trigger_gc", "trigger_scrub", "verify_ledger", "start_verify", "start_recover"),
        ("Location",),
    ),
    "create_callback": ("Location",),
    **dict.fromkeys(("set_lifecycle", "judge_removal", "remove_bookie"), ("Location?",)),
}
_BY_STATUS: Final = {
    "307": ("Location", "Log-Owner", "Log-Epoch"),
    "401": ("WWW-Authenticate",),
    "429": ("Retry-After?",),
    "503": ("Retry-After?", "Log-Owner?", "Log-Epoch?"),
}
_PARAMETERS: Final[dict[str, Any]] = {
    "namespace": "default",
    "log": "orders",
    "cursor": "billing",
    "server": "log-1",
    "offset": 1700,
    "ledger_id": 7,
    "bookie_id": "bk-2",
    "bookie": "bk-2",
    "state": "closed",
    "short": True,
    "give_up": 12,
    "operation_id": "gc-1",
    "prefix": "ord",
    "page_token": "",
    "from": "-10",
    "at": "ago:15m",
    "until": 1703,
    "timestamp_us": 1_795_219_200_000_000,
    "until_timestamp_us": 1_795_219_200_000_000,
    "grace_ms": 60_000,
    "file_type": "journal",
    "on_truncated": "skip",
    "accept": "application/json",
    "last-event-id": "1701",
    "if-match": '"3"',
    "if-none-match": "*",
    "idempotency-key": "5c1c9a1e",
    "log-expected-offset": 1703,
    "log-writer-epoch": 4,
    "log-forward": "auto",
    "log-uid": _UID,
    "uid": _UID,
    "log-key": "1",
    "log-event-time-us": "1795219200000000",
    "log-meta-*": "till 4",
    "producer-id": "till-4",
    "producer-epoch": 0,
    "producer-seq": 0,
}


_SCHEMAS: Final = "#/components/schemas/"
Describe = Callable[[type[RollbookError], int], dict[str, Any]]


def name_by_title(document: dict[str, Any]) -> None:
    """Publishes each model under its title, which is its class's name unless the model has another."""
    schemas = document["components"]["schemas"]
    by_title = {schema["title"]: name for name, schema in schemas.items()}
    assert len(by_title) == len(schemas), "two models have the same title"
    renamed = {
        f"{_SCHEMAS}{name}": f"{_SCHEMAS}{title}"
        for title, name in by_title.items()
        if title != name
    }
    if renamed:
        found = {title: schemas[by_title[title]] for title in sorted(by_title)}
        document["components"]["schemas"] = found
        _rename_references(document, renamed)


def _rename_references(part: Any, renamed: dict[str, str]) -> None:
    if isinstance(part, list):
        for each in part:
            _rename_references(each, renamed)
    elif isinstance(part, dict):
        if part.get("$ref") in renamed:
            part["$ref"] = renamed[part["$ref"]]
        for each in part.values():
            _rename_references(each, renamed)


def complete(document: dict[str, Any], open_paths: Collection[str], describe: Describe) -> None:
    """`open_paths` need no authentication. `describe` returns the response for an error and a status."""
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "Required off loopback, unless a client certificate names the caller.",
        }
    }
    for path, operation in _operations(document):
        is_open = path in open_paths
        operation["security"] = [] if is_open else [{"token": []}, {}]
        if not is_open:
            _add_refusals(operation["responses"], describe)
        for status, response in operation["responses"].items():
            names = _BY_STATUS.get(status, ())
            if status[0] == "2" or status == "304":
                names = _BY_OPERATION.get(operation["operationId"], ())
            if names:
                response["headers"] = {name.rstrip("?"): _header(name) for name in names}
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _never_null(parameter["schema"])
            _add_example(parameter, document["components"]["schemas"])


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


def _add_refusals(responses: dict[str, Any], describe: Describe) -> None:
    refusals: tuple[tuple[int, type[RollbookError]], ...] = (
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (Throttled.code.http, Throttled),
    )
    for status, error in refusals:
        responses.setdefault(str(status), describe(error, status))


def _header(name: str) -> dict[str, Any]:
    schema, description, example = _HEADERS[name.rstrip("?")]
    found = {"schema": schema, "description": description, "example": example}
    return found if name.endswith("?") else {"required": True, **found}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **kinds[0]} if len(kinds) == 1 else schema


def _add_example(parameter: dict[str, Any], schemas: dict[str, Any]) -> None:
    schema = parameter["schema"]
    example = _PARAMETERS.get(parameter["name"].lower(), schema.get("default"))
    if example is None and "$ref" in schema:
        example = schemas[schema["$ref"].rpartition("/")[2]]["enum"][0]
    if example is None:
        example = schema.get("minimum", 1)
    if schema.get("type") == "array" and not isinstance(example, list):
        example = [example]
    parameter["example"] = example

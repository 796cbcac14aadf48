"""Describes routes for OpenAPI: the bodies of requests and responses by the messages, failures by the table of
errors."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollbook.api.rest.message_json import Json
from rollbook.api.rest.message_schema import example_of, schema_of
from rollbook.api.rest.problems import describe_problems
from rollbook.api.rest.record_json import BLOCK, JSON, NDJSON, RAW
from rollbook.logservice.core.record_block import pack_block
from rollbook.proto.errors import (
    BadChecksum,
    BeyondTail,
    DuplicateDiffers,
    DuplicateTooOld,
    EntryTooLarge,
    InvalidBlock,
    InvalidRequest,
    LogDeleted,
    LogReplaced,
    LogSealed,
    NoSuchLog,
    NotEnoughBookies,
    NotOwner,
    OffsetMismatch,
    Overloaded,
    OwnerChanging,
    OwnerLost,
    ProducerFenced,
    ProducerGap,
    QuorumTimeout,
    RollbookError,
    StaleEpoch,
    Truncated,
    WriterRequired,
)

Errors = Sequence[type[RollbookError]]

ANYWHERE: Final[Errors] = (
    InvalidRequest,
    NoSuchLog,
    LogDeleted,
    # Possible without a uid, too: the log is deleted and created again during the request.
    LogReplaced,
    QuorumTimeout,
    Overloaded,
)
AT_OWNER: Final[Errors] = (*ANYWHERE, NotOwner, OwnerChanging, OwnerLost, LogSealed)
OF_APPENDS: Final[Errors] = (
    *AT_OWNER,
    OffsetMismatch,
    StaleEpoch,
    WriterRequired,
    ProducerGap,
    ProducerFenced,
    DuplicateTooOld,
    DuplicateDiffers,
    EntryTooLarge,
    InvalidBlock,
    BadChecksum,
    NotEnoughBookies,
)
OF_READS: Final[Errors] = (*ANYWHERE, NotOwner, OwnerChanging, Truncated, BeyondTail)

RECORD: Final[Json] = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "description": "The value, as text."},
        "data_b64": {"type": "string", "contentEncoding": "base64"},
        "json": {"description": "The value, as any JSON."},
        "key": {"type": ["string", "null"]},
        "key_b64": {"type": ["string", "null"], "contentEncoding": "base64"},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "headers_b64": {"type": "object", "additionalProperties": {"type": "string"}},
        "event_time_us": {"type": ["integer", "null"], "format": "int64"},
    },
    "oneOf": [{"required": ["data"]}, {"required": ["data_b64"]}, {"required": ["json"]}],
    "additionalProperties": False,
}
READ_RECORD: Final[Json] = {
    "type": "object",
    "properties": {
        "offset": {"type": "integer", "format": "int64"},
        "timestamp_us": {"type": "integer", "format": "int64"},
        **RECORD["properties"],
    },
    "required": ["offset", "timestamp_us"],
}
READ_ANSWER: Final[Json] = {
    "type": "object",
    "properties": {
        "records": {"type": "array", "items": READ_RECORD},
        **{
            name: {"type": "integer", "format": "int64"} for name in ("next_offset", "head", "tail")
        },
        "is_sealed": {"type": "boolean"},
    },
    "required": ["records", "next_offset", "head", "tail", "is_sealed"],
}
READ_EXAMPLE: Final[Json] = {
    "records": [
        {"offset": 1700, "timestamp_us": 1_795_219_200_000_000, "data": "paid 1", "key": "1"}
    ],
    "next_offset": 1701,
    "head": 0,
    "tail": 1703,
    "is_sealed": False,
}
RECORD_BODIES: Final[Json] = {
    RAW: {"schema": {"type": "string", "format": "binary"}, "example": "paid 1"},
    JSON: {
        "schema": {
            "type": "object",
            "properties": {"records": {"type": "array", "items": RECORD, "minItems": 1}},
            "required": ["records"],
            "additionalProperties": False,
        },
        "example": {"records": [{"data": "paid 1", "key": "1"}, {"json": {"paid": 2}}]},
    },
    NDJSON: {
        "schema": {"type": "string"},
        "example": '{"data":"paid 1"}\n{"data":"paid 2","key":"2"}\n',
    },
    BLOCK: {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "A block in the format of logservice/core/record_block.py. One record, `paid 1`, in base64: "
            + b64encode(pack_block([b"paid 1"])).decode(),
        }
    },
}


def described(
    answer: Any = None,
    *,
    status: int = 200,
    errors: Errors = ANYWHERE,
    says: Any = None,
    without: tuple[str, ...] = ("log", "uid"),
    body: Mapping[str, Any] | None = None,
    body_required: bool = True,
    more: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """`says`: the message in the body, whose fields `without` come from the path and headers. `more`: the descriptions
    of further responses, by status.
    """
    responses: dict[int | str, Any] = {**describe_problems(*errors)}
    responses[status] = {"description": "Done."}
    if answer is not None:
        shown = {"schema": schema_of(answer), "example": example_of(answer)}
        responses[status]["content"] = {JSON: shown}
    for code, text in (more or {}).items():
        responses[code] = {"description": text}
    found: dict[str, Any] = {"status_code": status, "responses": responses}
    if says is not None:
        schema = schema_of(says, without=without, is_request=True)
        required = bool(schema["required"])
        example = example_of(says, without=without)
        body = {JSON: {"schema": schema, "example": example}}
        body_required = required
    if body is not None:
        found["openapi_extra"] = {"requestBody": {"content": body, "required": body_required}}
    return found

"""The messages of a metadata service as bytes, for its Unix socket.

A frame (`proto/wire/frames.py`) holds `u32 head length`, a head, which is a JSON list, and the
values one after the other; the head has their lengths. The client sends:

    ["hello", PROTOCOL, store, session, timeout ms]
    ["get" | "children", request, path]
    ["transact", request, [["create", path, mode, length] | ["set", path, version, length]
                           | ["delete" | "check", path, version] …]]      version null: any
    ["watch", request, watch, path, recursive, since]
    ["unwatch", request, watch]
    ["sync" | "end", request]

The service sends (`stat` is the seven numbers of a NodeStat):

    ["welcome", store, session, timeout ms, commit]
    ["expired", session]
    ["node", request, commit, length, stat]
    ["list", request, commit, [name or path | stat | null …]]
    ["nothing", request, commit]
    ["refused", request, commit, error class, text, ids]
    ["told", watch, commit, event kind, path]
"""

import json
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rollbook.proto.errors import (
    BadFrame,
    EntryTooLarge,
    InvalidRequest,
    MetadataConflict,
    MetadataFull,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    Overloaded,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.metastore.core.service_messages import (
    Answer,
    Ask,
    Children,
    EndSession,
    Expired,
    FromClient,
    FromService,
    Get,
    Hello,
    Question,
    Result,
    StartWatch,
    StopWatch,
    Sync,
    Transact,
    WatchNotice,
    Welcome,
)
from rollbook.proto.ports import (
    Check,
    Create,
    CreateMode,
    Delete,
    Node,
    NodeStat,
    Op,
    OpResult,
    Set,
    WatchEvent,
    WatchEventKind,
)
from rollbook.proto.wire.frames import pack_frame

PROTOCOL: Final = 1
# This is twice REQUEST_BYTES_MAX, since JSON adds bytes.
REQUEST_FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
ANSWER_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024  # Four million children.
_HEAD: Final = struct.Struct(">I")
_EVENT_KINDS: Final = {kind.value: kind for kind in WatchEventKind}

M = TypeVar("M")

_REFUSALS: Final = {
    error.__name__: error
    for error in (
        NoSuchNode,
        NodeExists,
        NodeNotEmpty,
        MetadataConflict,
        InvalidRequest,
        EntryTooLarge,
        SessionExpired,
        Overloaded,
        MetadataFull,
    )
}


def pack_from_client(message: FromClient) -> bytes:
    match message:
        case Hello(store, session, timeout_ms):
            return _pack(["hello", PROTOCOL, store, session, timeout_ms])
        case Ask(request_id, question):
            return _pack_question(request_id, question)


def _pack_question(request_id: int, question: Question) -> bytes:
    match question:
        case Get(path):
            return _pack(["get", request_id, path])
        case Children(path):
            return _pack(["children", request_id, path])
        case Transact(ops):
            values = [op.value for op in ops if isinstance(op, Create | Set)]
            return _pack(["transact", request_id, [_op_head(op) for op in ops]], *values)
        case StartWatch(watch_id, path, recursive, since):
            return _pack(["watch", request_id, watch_id, path, recursive, since])
        case StopWatch(watch_id):
            return _pack(["unwatch", request_id, watch_id])
        case Sync():
            return _pack(["sync", request_id])
        case EndSession():
            return _pack(["end", request_id])


def _op_head(op: Op) -> list[object]:
    match op:
        case Create(path, value, mode):
            return ["create", path, mode.value, len(value)]
        case Set(path, value, version):
            return ["set", path, version, len(value)]
        case Delete(path, version):
            return ["delete", path, version]
        case Check(path, version):
            return ["check", path, version]


def unpack_from_client(body: bytes) -> FromClient:
    return _unpack(body, _from_client)


def _from_client(head: object, values: "_Values") -> FromClient:
    match head:
        case ["hello", int(protocol), str(store), int(session), int(timeout_ms)]:
            if protocol != PROTOCOL:
                raise BadFrame(
                    f"the peer uses protocol {protocol}, but this process uses {PROTOCOL}"
                )
            return Hello(store, session, timeout_ms)
        case ["get", int(request_id), str(path)]:
            return Ask(request_id, Get(path))
        case ["children", int(request_id), str(path)]:
            return Ask(request_id, Children(path))
        case ["transact", int(request_id), list(heads)]:
            return Ask(request_id, Transact(tuple(_op(head, values) for head in heads)))
        case ["watch", int(request_id), int(watch), str(path), bool(recursive), since]:
            if since is not None and not isinstance(since, int):
                raise _bad()
            return Ask(request_id, StartWatch(watch, path, recursive, since))
        case ["unwatch", int(request_id), int(watch)]:
            return Ask(request_id, StopWatch(watch))
        case ["sync", int(request_id)]:
            return Ask(request_id, Sync())
        case ["end", int(request_id)]:
            return Ask(request_id, EndSession())
        case _:
            raise _bad()


def _op(head: object, values: "_Values") -> Op:
    match head:
        case ["create", str(path), int(mode), int(length)] if 0 <= mode < len(CreateMode):
            return Create(path, values.take(length), CreateMode(mode))
        case ["set", str(path), int() | None as version, int(length)]:
            return Set(path, values.take(length), version)
        case ["delete", str(path), int() | None as version]:
            return Delete(path, version)
        case ["check", str(path), int() | None as version]:
            return Check(path, version)
        case _:
            raise _bad()


def pack_from_service(message: FromService) -> bytes:
    match message:
        case Answer(request_id, commit, result):
            return _pack_answer(request_id, commit, result)
        case WatchNotice(watch_id, commit, event):
            return _pack(["told", watch_id, commit, event.kind.value, event.path])
        case Welcome(store, session, timeout_ms, commit):
            return _pack(["welcome", store, session, timeout_ms, commit])
        case Expired(session):
            return _pack(["expired", session])


def _pack_answer(request_id: int, commit: int, result: Result | RollbookError) -> bytes:
    match result:
        case None:
            return _pack(["nothing", request_id, commit])
        case Node(value, stat):
            head = ["node", request_id, commit, len(value), _stat_head(stat)]
            return _pack(head, value)
        case RollbookError():
            kind = type(result).__name__
            assert kind in _REFUSALS
            return _pack(["refused", request_id, commit, kind, result.message, result.ids])
        case list():
            heads = [_stat_head(item) if isinstance(item, NodeStat) else item for item in result]
            return _pack(["list", request_id, commit, heads])


def unpack_from_service(body: bytes) -> FromService:
    return _unpack(body, _from_service)


def _from_service(head: object, values: "_Values") -> FromService:
    match head:
        case ["node", int(request_id), int(commit), int(length), stat]:
            return Answer(request_id, commit, Node(values.take(length), _stat(stat)))
        case ["list", int(request_id), int(commit), list(items)]:
            return Answer(request_id, commit, [_item(item) for item in items])
        case ["nothing", int(request_id), int(commit)]:
            return Answer(request_id, commit, None)
        case ["refused", int(request_id), int(commit), str(kind), str(text), dict(ids)]:
            if kind not in _REFUSALS:
                raise _bad()
            refusal = _REFUSALS[kind](text)
            refusal.ids = ids
            return Answer(request_id, commit, refusal)
        case ["told", int(watch_id), int(commit), str(kind), str(path)]:
            if kind not in _EVENT_KINDS:
                raise _bad()
            return WatchNotice(watch_id, commit, WatchEvent(_EVENT_KINDS[kind], path))
        case ["welcome", str(store), int(session), int(timeout_ms), int(commit)]:
            return Welcome(store, session, timeout_ms, commit)
        case ["expired", int(session)]:
            return Expired(session)
        case _:
            raise _bad()


def _item(item: object) -> OpResult:
    return item if item is None or isinstance(item, str) else _stat(item)


def _stat_head(stat: NodeStat) -> tuple[int, ...]:
    return (
        stat.version,
        stat.created_txn,
        stat.modified_txn,
        stat.created_ms,
        stat.modified_ms,
        stat.owner,
        stat.children,
    )


def _stat(head: object) -> NodeStat:
    match head:
        case [int(), int(), int(), int(), int(), int(), int()]:
            return NodeStat(*head)
        case _:
            raise _bad()


class _Values:
    """The values after a head. They must be taken in order, each once, and all of them."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self._position = position

    def take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if not start <= self._position <= len(self._body):
            raise _bad()
        return self._body[start : self._position]

    def end(self) -> None:
        if self._position != len(self._body):
            raise _bad()


def _pack(head: list[Any], *values: bytes) -> bytes:
    text = _to_json(head).encode()
    return pack_frame(b"".join((_HEAD.pack(len(text)), text, *values)))


def _unpack(body: bytes, read: Callable[[object, _Values], M]) -> M:
    if len(body) < _HEAD.size:
        raise _bad()
    end = _HEAD.size + _HEAD.unpack_from(body)[0]
    if end > len(body):
        raise _bad()
    try:
        # Without `decode`, json would guess the encoding.
        head = json.loads(body[_HEAD.size : end].decode())
    except (ValueError, RecursionError) as error:
        raise _bad() from error
    values = _Values(body, end)
    message = read(head, values)
    values.end()
    return message


def _bad() -> BadFrame:
    return BadFrame("not a message of the metadata service")


_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode

import json
import random
import struct

import pytest

from rollbook.proto.errors import (
    BadFrame,
    EntryTooLarge,
    InvalidRequest,
    MetadataConflict,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    Overloaded,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.metastore.core.request_checks import REQUEST_BYTES_MAX, check_ops
from rollbook.proto.metastore.core.service_codec import (
    REQUEST_FRAME_BYTES_MAX,
    pack_from_client,
    pack_from_service,
    unpack_from_client,
    unpack_from_service,
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
    Set,
    WatchEvent,
    WatchEventKind,
)
from rollbook.proto.wire.frames import FrameDecoder

STAT = NodeStat(1, 2, 3, 4, 5, 2**63 - 1, 7)
FROM_CLIENT: list[FromClient] = [
    Hello("store", 2**62, 1000),
    Ask(1, Get("/a")),
    Ask(2, Children("/")),
    Ask(3, Transact(())),
    Ask(
        4,
        Transact(
            (
                Create("/a", b"\0value", CreateMode.EPHEMERAL_SEQUENTIAL),
                Set('/"\\', b"", 3),
                Set("/c", b"more"),
                Delete("/d", 0),
                Delete("/d"),
                Check("/e", 2**31 - 1),
            )
        ),
    ),
    Ask(5, StartWatch(6, "/a", recursive=True, since=None)),
    Ask(6, StartWatch(6, "/a", recursive=False, since=12)),
    Ask(7, StopWatch(6)),
    Ask(8, Sync()),
    Ask(9, EndSession()),
]
FROM_SERVICE: list[FromService] = [
    Welcome("store", 17, 1000, 99),
    Expired(17),
    Answer(1, 5, None),
    Answer(2, 5, Node(b"value", STAT)),
    Answer(3, 5, ["a", "b"]),
    Answer(4, 5, ["/path", STAT, None]),
    *(WatchNotice(6, 5, WatchEvent(kind, "/a")) for kind in WatchEventKind),
]


def body_of(frame: bytes) -> bytes:
    (body,) = FrameDecoder().feed(frame)
    return body


@pytest.mark.parametrize("message", FROM_CLIENT, ids=repr)
def test_client_messages_survive_round_trip(message: FromClient) -> None:
    assert unpack_from_client(body_of(pack_from_client(message))) == message


@pytest.mark.parametrize("message", FROM_SERVICE, ids=repr)
def test_service_messages_survive_round_trip(message: FromService) -> None:
    assert unpack_from_service(body_of(pack_from_service(message))) == message


@pytest.mark.parametrize(
    "error",
    [
        NoSuchNode(path="/a"),
        NodeExists("text", path="/a", op=1),
        NodeNotEmpty(path="/a"),
        MetadataConflict(path="/a", expected=1, found=2),
        InvalidRequest("no"),
        EntryTooLarge(),
        SessionExpired(session=5),
        Overloaded("full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_class_text_and_ids(error: RollbookError) -> None:
    answer = unpack_from_service(body_of(pack_from_service(Answer(1, 2, error))))
    assert isinstance(answer, Answer)
    assert type(answer.result) is type(error)
    assert str(answer.result) == str(error)
    assert isinstance(answer.result, RollbookError)
    assert answer.result.ids == error.ids


def test_largest_requests_fit_in_a_frame() -> None:
    """The frame is large enough for all requests that `check_ops` accepts, whatever JSON escapes in
    their paths.
    """
    path = "/" + "/".join(["\\" * 255] * 15)
    count = REQUEST_BYTES_MAX // (len(path) + 128)
    for ops in (
        (Set("/a", bytes(REQUEST_BYTES_MAX - 200)),),
        tuple(Delete(path, 2**31 - 1) for _ in range(count)),
        tuple(Create("/a", b"", CreateMode.PERSISTENT) for _ in range(REQUEST_BYTES_MAX // 130)),
    ):
        check_ops(ops)
        message = Ask(2**40, Transact(ops))
        frame = pack_from_client(message)
        assert len(frame) <= REQUEST_FRAME_BYTES_MAX
        assert unpack_from_client(body_of(frame)) == message


def framed(head: object, values: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + values


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\5[]",
        b"\xff\xff\xff\xff",
        framed([]),
        framed({}),
        framed(None),
        framed(b"[" * 100_000),
        framed(b"[NaN"),
        framed(b"\xff"),
        framed(b"9" * 10_000),
        framed(["hello", 2, "", 0, 0]),
        framed(["hello", 1, 0, 0, 0]),
        framed(["get", 1, 2]),
        framed(["get", 1.0, "/"]),
        framed(["get", 1, "/"], b"left over"),
        framed(["what", 1]),
        framed(["transact", 1, [["set", "/a", None, 9]]], b"short"),
        framed(["transact", 1, [["set", "/a", None, -1]]]),
        framed(["transact", 1, [["set", "/a", None, 3], ["set", "/a", None, -2]]], b"a"),
        framed(["transact", 1, [["create", "/a", 4, 0]]]),
        framed(["transact", 1, [["delete", "/a", "0"]]]),
        framed(["transact", 1, ["delete"]]),
        framed(["watch", 1, 2, "/a", 1, None]),
        framed(["watch", 1, 2, "/a", True, "x"]),
        framed(["refused", 1, 2, "SystemExit", "", {}]),
        framed(["told", 1, 2, "born", "/a"]),
        framed(["node", 1, 2, 0, [1, 2, 3]]),
        framed(["list", 1, 2, [[1]]]),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_invalid_message_is_a_bad_frame(body: bytes) -> None:
    for unpack in (unpack_from_client, unpack_from_service):
        with pytest.raises(BadFrame):
            unpack(body)


def test_mutated_messages_are_messages_or_bad_frames() -> None:
    chance = random.Random(1)
    client = [body_of(pack_from_client(message)) for message in FROM_CLIENT]
    service = [body_of(pack_from_service(message)) for message in FROM_SERVICE]
    refused = 0
    for _ in range(20_000):
        is_client = chance.random() < 0.5
        body = bytearray(chance.choice(client if is_client else service))
        for _ in range(chance.randint(1, 3)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            (unpack_from_client if is_client else unpack_from_service)(bytes(body))
        except BadFrame:
            refused += 1
    assert 5_000 < refused < 20_000

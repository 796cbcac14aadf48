"""Records over HTTP: bodies, conditions, retries, reading, following."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from rollbook.api.access.authenticator import Authenticator, anybody
from rollbook.api.rest import event_streams
from rollbook.api.rest.fairness.reader_turns import ReaderTurns
from rollbook.api.rest.record_json import (
    NDJSON as NDJSON_TYPE,
)
from rollbook.api.rest.record_json import (
    RAW as RAW_TYPE,
)
from rollbook.api.rest.record_json import (
    Encoding,
    block_of,
    dumped,
    framed,
    parse_json,
    record_json,
    records_json,
)
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Block, Record, pack_block
from rollbook.logservice.ids import LogName, Offset, ProducerRef
from rollbook.logservice.log_config import BATCH_RECORDS_CEILING
from rollbook.logservice.messages import Records
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import EntryTooLarge
from tests.unit.api.grpc.fake_core import FakeLog
from tests.unit.api.rest import log_routes
from tests.unit.api.rest.http_client import Answer
from tests.unit.api.rest.log_routes import JSON, LINES, LOG, NDJSON, RAW, SSE, Site, Stream

NAME = LogName("ns", "log")
BLOCK = {"content-type": "application/vnd.rollbook.batch"}
RECORDS = f"{LOG}/records"
UID = "5c1c9a1ef0e34b0c8d1f2a3b4c5d6e7f"


def log_of(there: Site) -> FakeLog:
    return there.core.cluster.logs[NAME]


async def append(there: Site, body: bytes, *kinds: dict[str, str], **headers: str) -> Answer:
    for kind in kinds:
        headers = {**kind, **headers}
    return await there.ask("POST", RECORDS, body, **headers)


async def records(there: Site, query: str = "") -> list[Any]:
    answer = await there.get(f"{RECORDS}?{query}")
    assert answer.status == 200, answer.body
    found: list[Any] = answer.json["records"]
    return found


# --- Appending --------------------------------------------------------------------------------


async def test_raw_append_keeps_bytes_key_headers_and_event_time(there: Site) -> None:
    more = {"log-key": "k", "log-meta-Trace": "7", "log-event-time-us": "-5"}
    more = {name.lower(): value for name, value in more.items()}
    answer = await append(there, b"\x00\xff\n", RAW, more)
    assert (answer.status, answer.headers["location"]) == (201, f"{RECORDS}/0")
    assert (answer.json["first_offset"], answer.headers["log-next-offset"]) == (0, "1")
    (record,) = await records(there)
    assert record == {
        "offset": 0,
        "timestamp_us": 1000,
        "data_b64": base64.b64encode(b"\x00\xff\n").decode(),
        "key": "k",
        "headers": {"trace": "7"},
        "event_time_us": -5,
    }


async def test_json_and_ndjson_batches_append_the_same_records(there: Site) -> None:
    batch = [
        {"data": "text ü"},
        {
            "data_b64": "AP8=",
            "key_b64": "/w==",
            "headers": {"a": "b"},
            "headers_b64": {"c": "/w=="},
        },
        {"json": {"a": [1, None, "x"]}, "key": "k", "event_time_us": 9},
        {"data": "", "key": None},
    ]
    lines = b"".join(dumped(each) + b"\n" for each in batch)
    assert (await append(there, dumped({"records": batch}), JSON)).status == 201
    assert (await append(there, lines, NDJSON)).status == 201
    assert (await append(there, lines[:-1], NDJSON)).json["next_offset"] == 12
    found = await records(there)
    for index in range(12):
        found[index].pop("timestamp_us")
        assert found[index].pop("offset") == index
    assert found[:4] == found[4:8] == found[8:]
    assert found[:4] == [
        {"data": "text ü"},
        {
            "data_b64": "AP8=",
            "key_b64": "/w==",
            "headers": {"a": "b"},
            "headers_b64": {"c": "/w=="},
        },
        {"data": '{"a":[1,null,"x"]}', "key": "k", "event_time_us": 9},
        {"data": ""},
    ]
    assert len(log_of(there).blocks) == 3  # Each batch is one block.


async def test_framed_block_is_stored_unchanged_and_deduplicated(there: Site) -> None:
    block = pack_block([b"a", b"b"], producer=ProducerRef(b"me", 0, 0))
    assert (await append(there, block, BLOCK)).json["next_offset"] == 2
    assert (await append(there, block, BLOCK)).json["is_duplicate"]
    assert log_of(there).blocks[0][40:] == block[40:]
    answer = await append(there, block, BLOCK, {"idempotency-key": "k"})
    assert (answer.status, answer.reason) == (400, "INVALID")
    answer = await append(there, block[:-1], BLOCK)
    assert (answer.status, answer.reason) == (400, "INVALID_BLOCK")


BAD_BATCHES = {
    b"": "line 1",
    b"\n": "line 1",
    b'{"data":"a"}\n\n{"data":"b"}\n': "line 2",
    b'{"data":"a"},{"data":"b"}\n': "line 1",
    b'{"data":"a"\n"key":"b"}\n': "line 1",
    b'{"data":"a"} {"data":"b"}': "line 1",
    b'{"data":"\xff"}': "line 1",
    b'{"data":"a"}\n\n{"data":"b"}': "line 2 is empty; expected a record as JSON",
    b'{"data":NaN}': "line 1",
    b"[]": "record 0: an object",
    b'["data"]': "record 0: an object",
    b'"data"': "record 0: an object",
    b"null": "record 0: an object",
    b"{}": "one of data, data_b64 and json",
    b'{"data":"a","json":1}': "one of data, data_b64 and json",
    b'{"data":7}': "data: a string",
    b'{"data":null}': "data: a string",
    b'{"data":"a"}\n{"data":7}': "record 1: data: a string",
    b'{"data":"a"}\n{"datum":"b"}': "record 1: unknown field 'datum'",
    b'{"data_b64":"*"}': "data_b64: it is not base64",
    b'{"data":"a","key":"b","key_b64":""}': "one of key and key_b64",
    b'{"data":"a","headers":{"h":1}}': "headers: an object of strings",
    b'{"data":"a","headers":["h"]}': "headers: an object of strings",
    b'{"data":"a","headers":{"h":"1"},"headers_b64":{"h":""}}': "twice",
    b'{"data":"a","headers":{"not a name":"1"}}': "printable ASCII",
    b'{"data":"a","event_time_us":1.5}': "event_time_us: an integer",
    b'{"data":"a","event_time_us":true}': "event_time_us: an integer",
    b'{"data":"a","event_time_us":9223372036854775808}': "event_time_us: an integer",
    b'{"json":1e999}': "json: a number is too large",
}


@pytest.mark.parametrize("body", BAD_BATCHES, ids=lambda body: body[:30])
async def test_invalid_ndjson_batch_appends_nothing(there: Site, body: bytes) -> None:
    answer = await append(there, body, NDJSON)
    assert (answer.status, answer.reason) == (400, "INVALID")
    assert BAD_BATCHES[body] in answer.json["detail"]
    assert answer.json["outcome"] == "not_applied"
    assert not log_of(there).blocks


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"records":{}}', b'{"records":[]}', b'{"records":[1]}', b"{"]
)
async def test_json_body_without_valid_records_is_rejected(there: Site, body: bytes) -> None:
    answer = await append(there, body, JSON)
    assert (answer.status, answer.reason) == (400, "INVALID")


async def test_append_without_a_known_media_type_is_refused(there: Site) -> None:
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await append(there, b"x", {"content-type": kind} if kind else {})
        assert (answer.status, answer.reason) == (415, "INVALID")
        assert "octet-stream" in answer.json["next_step"]
    answer = await append(there, b"x", RAW, {"content-encoding": "gzip"})
    assert answer.status == 415
    parameters = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await append(there, b'{"records":[{"data":"x"}]}', parameters)).status == 201


def test_body_with_too_many_json_values_or_lines_is_rejected() -> None:
    for body in (b"[" * 500_001, b'{"json":[' + b"{}," * 500_000, b"{" * 500_001):
        with pytest.raises(EntryTooLarge):
            block_of(NDJSON_TYPE, body, None, None)  # type: ignore[arg-type]  # Headers are unused.
    with pytest.raises(EntryTooLarge):
        block_of(NDJSON_TYPE, b"\n" * (BATCH_RECORDS_CEILING + 1), None, None)  # type: ignore[arg-type]  # Headers are unused.


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.binary(), min_size=1))
def test_text_and_bytes_round_trip(values: list[str | bytes]) -> None:
    batch = [
        {"data": each} if isinstance(each, str) else {"data_b64": base64.b64encode(each).decode()}
        for each in values
    ]
    lines = b"\n".join(map(dumped, batch))
    block = block_of(NDJSON_TYPE, lines, None, None)  # type: ignore[arg-type]  # Headers are unused.
    assert Block(block).values() == [e.encode() if isinstance(e, str) else e for e in values]


def test_header_order_does_not_change_the_block() -> None:
    """LS6: else a retry with reordered headers has another CRC and is rejected."""
    producer = ProducerRef(b"p", 0, 0)
    texts, raw = {"b": "2", "a": "1"}, {"d": "NA==", "c": "Mw=="}
    record = {"data": "x", "headers": texts, "headers_b64": raw}
    again = {"headers_b64": _turned(raw), "headers": _turned(texts), "data": "x"}
    assert framed([record], producer) == framed([again], producer)
    meta = {"log-meta-b": "2", "log-meta-a": "1"}
    assert block_of(RAW_TYPE, b"x", Headers(meta), producer) == block_of(
        RAW_TYPE, b"x", Headers(_turned(meta)), producer
    )


def _turned(pairs: dict[str, str]) -> dict[str, str]:
    return dict(reversed(pairs.items()))


@given(_JSON_VALUES)
def test_json_value_round_trips(value: Any) -> None:
    line = json.dumps({"json": value}).encode()
    try:
        said = parse_json(line)
    except ValueError:  # A lone surrogate cannot be encoded.
        return
    (record,) = Block(framed([said], None)).records()
    assert json.loads(dumped(record_json(record, Encoding.JSON)))["json"] == said["json"]


_BYTES = st.text().map(lambda text: text.encode("utf-8", "replace")) | st.binary()
_READ = st.builds(
    Record,
    offset=st.integers(0, 2**63 - 1),
    value=_BYTES | _JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    key=st.none() | _BYTES,
    headers=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _BYTES, max_size=3),
    timestamp_us=st.integers(0, 2**63 - 1),
    event_time_us=st.none() | st.integers(-(2**63), 2**63 - 1),
)
_PLAIN = _READ.map(lambda read: read._replace(key=None, headers={}, event_time_us=None))
_TEXTS = _PLAIN.filter(lambda read: _is_text(read.value))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(_READ) | st.lists(_PLAIN) | st.lists(_TEXTS), st.sampled_from(Encoding))
def test_fast_json_encoding_equals_per_record_encoding(
    records: list[Record], encoding: Encoding
) -> None:
    """Clients and caches may compare the bytes of responses."""
    one_by_one = dumped([record_json(record, encoding) for record in records])
    assert records_json(records, encoding) == one_by_one


# --- Conditions and retries -------------------------------------------------------------------


async def test_failed_append_condition_is_412_and_malformed_one_400(there: Site) -> None:
    assert (await append(there, b"0", RAW, {"if-none-match": "*"})).status == 201
    answer = await append(there, b"0", RAW, {"if-none-match": "*"})
    assert (answer.status, answer.reason) == (412, "OFFSET_MISMATCH")
    assert answer.json["ids"]["tail"] == 1
    for name, good, bad in (
        ("log-expected-offset", "{}", "7"),
        ("if-match", '"{}"', '"7"'),
        ("if-match", "{}", "7"),
    ):
        answer = await append(there, b"x", RAW, {name: bad})
        assert (answer.status, answer.reason) == (412, "OFFSET_MISMATCH")
        tail = log_of(there).tail
        assert (await append(there, b"x", RAW, {name: good.format(tail)})).status == 201
    answer = await append(there, b"x", RAW, {"log-writer-epoch": "3"})
    assert (answer.status, answer.reason) == (412, "WRITER_FENCED")
    for bad_headers in (
        {"if-match": "*"},
        {"if-match": '"x"'},
        {"if-match": '"-1"'},
        {"if-none-match": '"1"'},
        {"log-expected-offset": "x"},
        {"log-expected-offset": "-1"},
        {"log-expected-offset": str(2**63)},
        {"log-expected-offset": "1", "if-match": '"2"'},
        {"log-writer-epoch": "old"},
    ):
        answer = await append(there, b"x", RAW, bad_headers)
        assert (answer.status, answer.reason) == (400, "INVALID"), bad_headers


async def test_repeated_append_requests_store_each_record_once(there: Site) -> None:
    """Each request is repeated a random number of times."""
    chance = random.Random(7)
    first: dict[int, int] = {}
    for seq in range(50):
        producer = {"producer-id": "shell", "producer-epoch": "2", "producer-seq": str(seq)}
        for _ in range(chance.randrange(1, 4)):
            answer = await append(there, b"%d" % seq, RAW, producer)
            offset = first.setdefault(seq, answer.json["first_offset"])
            assert answer.json["first_offset"] == offset
            assert answer.status == (200 if answer.json["is_duplicate"] else 201)
        again = {"idempotency-key": f"key-{seq // 2}"}
        answer = await append(there, b"once %d" % (seq // 2), RAW, again)
        assert (answer.status == 200) == (seq % 2 == 1)
    values = [each["data"] for each in await records(there)]
    assert [each for each in values if "once" not in each] == [str(seq) for seq in range(50)]
    assert [each for each in values if "once" in each] == [f"once {n}" for n in range(25)]
    gap = {"producer-id": "shell", "producer-epoch": "2", "producer-seq": "77"}
    answer = await append(there, b"x", RAW, gap)
    assert (answer.status, answer.reason) == (409, "PRODUCER_GAP")
    assert answer.json["ids"]["expected"] == 50
    old = {"producer-id": "shell", "producer-epoch": "1", "producer-seq": "0"}
    assert (await append(there, b"x", RAW, old)).reason == "PRODUCER_FENCED"


@pytest.mark.parametrize(
    "headers",
    [
        {"producer-id": "a"},
        {"producer-seq": "0"},
        {"producer-id": "", "producer-seq": "0"},
        {"producer-id": "x" * 65, "producer-seq": "0"},
        {"producer-id": "a", "producer-seq": "-1"},
        {"producer-id": "a", "producer-seq": "0", "producer-epoch": str(2**32)},
        {"producer-id": "a", "producer-seq": "0", "idempotency-key": "b"},
        {"idempotency-key": ""},
        {"idempotency-key": "x" * 60},
    ],
)
async def test_invalid_producer_headers_are_rejected(there: Site, headers: dict[str, str]) -> None:
    answer = await append(there, b"x", RAW, headers)
    assert (answer.status, answer.reason) == (400, "INVALID")


async def test_seal_appends_its_records_and_closes_the_log(there: Site) -> None:
    answer = await there.ask("POST", f"{LOG}:seal", b'{"data":"end"}', **NDJSON)
    assert (answer.status, answer.json) == (200, {"tail": 1})
    assert (await there.ask("POST", f"{LOG}:seal")).json == {"tail": 1}
    assert (await append(there, b"x", RAW)).reason == "SEALED"
    assert (await there.ask("POST", f"{LOG}:seal", b"x", **{"content-type": "a/b"})).status == 415


# --- Reading ----------------------------------------------------------------------------------


async def test_read_returns_the_requested_range(there: Site) -> None:
    for start in range(0, 30, 3):
        log_of(there).append(pack_block([b"%d" % n for n in range(start, start + 3)]), None)
    everything = await records(there)
    assert [each["offset"] for each in everything] == list(range(30))
    for start in range(0, 31, 2):
        for until in range(0, 31, 3):
            found = await records(there, f"from={start}&until={until}")
            assert [each["data"] for each in found] == [str(n) for n in range(start, until)]
    answer = await there.get(f"{RECORDS}?from=-4&limit=2")
    assert [each["offset"] for each in answer.json["records"]] == [26, 27]
    assert {name: answer.headers[f"log-{name}"] for name in ("next-offset", "tail", "sealed")} == {
        "next-offset": "28",
        "tail": "30",
        "sealed": "false",
    }
    assert answer.headers["log-up-to-date"] == "false"
    answer = await there.get(f"{RECORDS}?from=latest")
    assert (answer.json["records"], answer.headers["log-up-to-date"]) == ([], "true")
    answer = await there.get(f"{RECORDS}?from=latest&wait_ms=1")
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["log-next-offset"] == "30"
    assert (await there.get(f"{RECORDS}?from=31")).reason == "BEYOND_TAIL"
    log_of(there).head = Offset(5)
    answer = await there.get(f"{RECORDS}?from=4")
    assert (answer.status, answer.reason, answer.json["ids"]) == (410, "TRUNCATED", {"head": 5})


async def test_read_as_blocks_returns_whole_stored_blocks(there: Site) -> None:
    for text in (b"a", b"b"):
        log_of(there).append(pack_block([text] * 3), None)
    answer = await there.get(f"{RECORDS}?from=1", accept="application/vnd.rollbook.batch")
    assert answer.body == b"".join(log_of(there).blocks)
    assert (answer.headers["log-first-offset"], answer.headers["log-next-offset"]) == ("1", "6")


@pytest.mark.parametrize(
    "query",
    [
        "from=x",
        "from=ts:2026",
        "from=cursor:..",
        "until=-1",
        "limit=0",
        "limit=x",
        "wait_ms=-1",
        "wait_ms=60001",
        "max_bytes=0",
        "encoding=gzip",
        "on_truncated=maybe",
        "at_tail=never",
        f"until={2**63}",
        f"limit={10**30}",
        "heartbeat_ms=1",
    ],
)
async def test_invalid_read_query_is_rejected(there: Site, query: str) -> None:
    answer = await there.get(f"{RECORDS}?{query}")
    assert (answer.status, answer.reason) == (400, "INVALID")


async def test_accept_header_decides_the_media_type(there: Site) -> None:
    for accept in (
        "*/*",
        "application/*",
        "*/*;q=0.1",
        "text/html, application/json;q=0.9",
        "",
        " ",
        ",",
        ", ,",
        ",application/json,",
    ):
        answer = await there.get(RECORDS, accept=accept)
        assert answer.headers["content-type"] == "application/json"
    lines = "application/json;q=0.1, application/x-ndjson;q=0.9, text/html"
    for accept in (lines, "APPLICATION/X-NDJSON", "*/*;q=0, application/x-ndjson"):
        answer = await there.get(f"{RECORDS}?at_tail=stop", accept=accept)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
    for accept in (
        "application/json;q=0, */*",
        "*/*, application/json;q=0",
        "application/*, application/json;q=0",
        "*/*;q=0.1, application/vnd.rollbook.batch",
    ):
        answer = await there.get(RECORDS, accept=accept)
        assert answer.headers["content-type"] == "application/vnd.rollbook.batch"
    for accept in (
        "text/html",
        "*/*;q=0",
        "application/json;q=no",
        "app",
        "a/b/c",
        "*",
        "application/*;q=0, application/json;q=0",
        "*/*;q=0, text/*;q=0",
    ):
        answer = await there.get(RECORDS, accept=accept)
        assert (answer.status, answer.reason) == (406, "INVALID")


async def test_read_by_an_authenticated_caller_is_cached_privately(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with a certificate sends no credential in a header."""
    await append(there, b"zero", RAW)
    keeper = SimpleNamespace(still_admits=lambda _: True)
    somebody = replace(anybody(), authenticator=cast(Authenticator, keeper))
    for caller, whose in ((anybody(), "public"), (somebody, "private")):
        monkeypatch.setattr(log_routes, "anybody", lambda caller=caller: caller)
        answer = await there.get(f"{RECORDS}/0?uid={UID}")
        assert answer.headers["cache-control"] == f"{whose}, max-age=31536000, immutable"
        answer = await there.get(f"{RECORDS}/0")
        assert answer.headers["cache-control"] == f"{whose}, no-cache"


async def test_record_with_matching_etag_is_304(there: Site) -> None:
    location = (await append(there, b"zero", RAW)).headers["location"]
    etag = (await there.get(location)).headers["etag"]
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        assert (await there.get(location, **{"if-none-match": known})).status == 304
    for other in ('"x"', f"{etag[:-1]}", "W/", ""):
        assert (await there.get(location, **{"if-none-match": other})).status == 200


async def test_record_url_serves_value_headers_and_cache_rules(there: Site) -> None:
    more = {"log-key": "k", "log-meta-a": "b"}
    await append(there, b"zero", RAW)
    location = (await append(there, b"\x00one", RAW, more)).headers["location"]
    answer = await there.get(location)
    assert (answer.status, answer.body) == (200, b"\x00one")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (
        answer.headers["cache-control"] == "public, no-cache"
    )  # A later log may have the same name.
    lasting = await there.get(f"{location}?uid={UID}")
    assert lasting.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert (answer.headers["Log-Key".lower()], answer.headers["log-meta-a"]) == ("k", "b")
    assert answer.headers["x-content-type-options"] == "nosniff"
    etag = answer.headers["etag"]
    assert not etag.startswith("W/")
    again = await there.get(location, **{"if-none-match": f'"x", {etag}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["cache-control"] == "public, no-cache"
    other = await there.get(f"{RECORDS}/0")
    assert (other.body, other.headers["etag"] == etag) == (b"zero", False)
    bearer = "Bearer …".encode().decode("latin-1")
    shown = await there.get(f"{location}?uid={UID}", authorization=bearer)
    assert shown.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert (await there.get(f"{RECORDS}/2")).reason == "BEYOND_TAIL"
    assert (await there.get(f"{RECORDS}/99")).reason == "BEYOND_TAIL"
    for path in ("-1", "x", str(2**63), "0.5"):
        assert (await there.get(f"{RECORDS}/{path}")).reason == "INVALID"


async def test_record_fields_unfit_for_headers_are_counted_as_omitted(there: Site) -> None:
    """A record cannot inject a header into a response."""
    record = {
        "data": "x",
        "key": "a\r\nSet-Cookie: b",
        "headers": {"ok": "fine", "no": "a\nb", "sp(ace": "x", "long": "x" * 2000},
        "headers_b64": {"bytes": "/w=="},
    }
    await append(there, dumped({"records": [record]}), JSON)
    answer = await there.get(f"{RECORDS}/0")
    assert (answer.headers["log-meta-ok"], answer.headers["log-omitted"]) == ("fine", "5")
    assert "set-cookie" not in answer.headers


# --- Following --------------------------------------------------------------------------------


def events_in(text: bytes) -> list[tuple[str, str, Any]]:
    """Returns (id, event, data) of each event, as a browser parses them."""
    found = []
    for part in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.split("\n") if line)
        if "data" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


async def test_event_stream_resumes_without_loss_or_repeat(there: Site) -> None:
    """The client disconnects at random events and resumes with `Last-Event-ID`."""
    for start in range(0, 600, 40):
        values = [b"%d" % n * 300 for n in range(start, start + 40)]  # A block has several pieces.
        log_of(there).append(pack_block(values), None)
    log_of(there).is_sealed = True
    chance = random.Random(11)
    heard: list[int] = []
    headers: dict[str, str] = {}
    for _ in range(1000):
        enough = chance.randrange(1, 5)
        async with there.open("GET", f"{RECORDS}?from=0", b"", **SSE, **headers) as stream:
            if stream.status == 204 or (await anext(stream.parts(), None)) is None:
                break
            async for part in stream.parts():
                for number, kind, data in events_in(part):
                    headers = {"last-event-id": number}
                    if kind == "records":
                        heard += [each["offset"] for each in data["records"]]
                        enough -= 1
                if not enough:
                    break
    assert heard == list(range(600))
    assert headers == {"last-event-id": "600"}
    answer = await there.get(f"{RECORDS}?from=0", **SSE, **headers)
    assert (answer.status, answer.body) == (204, b"")  # Browsers stop reconnecting after a 204.


async def test_resume_at_the_end_of_a_sealed_log_is_204(there: Site) -> None:
    """The seal may be the first event or follow `caught_up`."""

    async def caught_up_first(request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        yield messages.CaughtUp(Offset(1))
        if log_of(there).is_sealed:
            yield messages.Sealed(Offset(1))

    log_of(there).append(pack_block([b"a"]), None)
    for events in (None, caught_up_first):
        there.core.events = events
        log_of(there).is_sealed = False
        async with there.open("GET", RECORDS, b"", **SSE, **{"last-event-id": "1"}) as stream:
            await anext(stream.parts())
            assert stream.status == 200
        log_of(there).is_sealed = True
        answer = await there.get(RECORDS, **SSE, **{"last-event-id": "1"})
        assert (answer.status, answer.body) == (204, b"")
        assert (await there.get(f"{RECORDS}?from=1", **SSE)).status == 200
    there.core.events = None


async def test_follower_gets_caught_up_progress_records_and_seal(there: Site) -> None:
    async with there.open("GET", f"{RECORDS}?from=latest&heartbeat_ms=100", b"", **SSE) as stream:
        parts = stream.parts()
        assert await anext(parts) == b"retry: 250\n\n"
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert events_in(await anext(parts)) == [("0", "caught_up", {"tail": 0})]
        ((number, kind, progress),) = events_in(await anext(parts))
        assert (number, kind, progress["waits_for"]) == ("0", "progress", "nothing")
        log_of(there).append(pack_block([b"a"]), None)
        told = [each async for part in parts_until(parts, "caught_up") for each in events_in(part)]
        told = [each for each in told if each[1] != "progress"]
        assert told[0] == (
            "1",
            "records",
            {"records": [{"offset": 0, "timestamp_us": 1000, "data": "a"}]},
        )
        log_of(there).is_sealed = True
        log_of(there).tell()
        last = [each async for part in parts for each in events_in(part)][-1]
        assert last == ("1", "sealed", {"tail": 1})
    assert not there.core.readers


async def parts_until(parts: Any, kind: str) -> Any:
    async for part in parts:
        yield part
        if kind.encode() in part:
            return


async def test_ndjson_stream_has_gap_records_and_stopped(there: Site) -> None:
    log_of(there).append(pack_block([b"a", b"b"]), None)
    log_of(there).head = Offset(1)
    answer = await there.get(f"{RECORDS}?from=0&at_tail=stop", **LINES)
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert lines == [
        {"event": "gap", "next_offset": 1, "kind": "truncated", "start": 0, "end": 1},
        {
            "event": "records",
            "next_offset": 2,
            "records": [{"offset": 1, "timestamp_us": 1000, "data": "b"}],
        },
        {"event": "stopped", "next_offset": 2, "offset": 2},
    ]
    answer = await there.get(f"{RECORDS}?from=0&on_truncated=fail", **LINES)
    assert (answer.status, answer.reason) == (410, "TRUNCATED")


async def test_disconnected_follower_releases_its_reader(there: Site) -> None:
    for headers in (SSE, LINES):
        async with there.open("GET", RECORDS, b"", **headers) as stream:
            await anext(stream.parts())
            assert there.core.readers == 1
        assert there.core.readers == 0
        assert not there.routing.followers


async def test_stalled_follower_releases_its_reader_and_misses_nothing(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_PATIENCE_S", 0.01)
    for start in range(0, 300, 30):
        log_of(there).append(pack_block([b"%d" % n * 300 for n in range(start, start + 30)]), None)
    heard: list[int] = []
    async with there.open("GET", f"{RECORDS}?heartbeat_ms=100", b"", **SSE) as stream:
        parts = stream.parts()
        while len(heard) < 300:
            stream.may_send.clear()
            while there.core.readers:  # Wait until the reader is released.
                await asyncio.sleep(0.005)
            stream.may_send.set()
            for _ in range(3):
                for _, kind, data in events_in(await anext(parts)):
                    heard += [e["offset"] for e in data.get("records", ())] if kind else []
                if len(heard) >= 300:
                    break
    assert heard == list(range(300))


async def test_range_ends_where_a_gap_passed_its_end(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for a client that reconnects and for one that stalled."""
    for _ in range(10):
        log_of(there).append(pack_block([b"x" * 10]), None)
    log_of(there).head = Offset(9)
    end = [("9", "stopped", {"offset": 9})]
    asked = f"{RECORDS}?from=0&until=5"
    answer = await there.get(asked, **SSE)
    assert events_in(answer.body)[1:] == end
    answer = await there.get(asked, **SSE, **{"last-event-id": "9"})
    assert (answer.status, answer.body) == (204, b"")  # Browsers stop reconnecting after a 204.
    monkeypatch.setattr(event_streams, "_PATIENCE_S", 0.01)
    async with there.open("GET", asked, b"", **SSE) as stream:
        stream.may_send.clear()
        while not there.core.asked or there.core.readers:  # Wait until the reader is released.
            await asyncio.sleep(0.005)
        stream.may_send.set()
        told = [each async for part in stream.parts() for each in events_in(part)]
    assert told[1:] == end
    assert (await there.get(f"{RECORDS}?from=9&until=5", **SSE)).reason == "INVALID"


@pytest.mark.parametrize("at_tail", ["stop", "stop_at_barrier"])
async def test_read_to_tail_fixes_its_end_at_the_start(
    there: Site, monkeypatch: pytest.MonkeyPatch, at_tail: str
) -> None:
    """Regression: the end was read again on each turn, so a growing log was read for ever."""
    log, block = log_of(there), pack_block([b"x" * 2000] * 20)
    for _ in range(10):
        log.append(block, None)
    stream_of_one: list[Stream] = []
    readings = 0

    async def told_twice(request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        nonlocal readings
        readings += 1
        events = 0
        async for event in there.core._follow(request):
            events += 1
            if events == 2 and readings == 1:
                stream_of_one[0].may_send.clear()
            yield event

    monkeypatch.setattr(event_streams, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(there.core, "events", told_twice)
    asked = f"{RECORDS}?from=0&at_tail={at_tail}"
    async with there.open("GET", asked, b"", **SSE) as stream:
        stream_of_one.append(stream)
        while stream.may_send.is_set() or there.core.readers:  # Wait until the reader is released.
            await asyncio.sleep(0.005)
        log.append(block, None)
        stream.may_send.set()
        told = [each async for part in stream.parts() for each in events_in(part)]
    heard = [each["offset"] for *_, data in told for each in data.get("records", ())]
    assert heard == list(range(200))
    assert told[-1] == ("200..200", "stopped", {"offset": 200})
    assert readings == 2


@pytest.mark.parametrize("at_tail", ["stop", "stop_at_barrier"])
async def test_resumed_read_to_tail_keeps_its_first_end(there: Site, at_tail: str) -> None:
    """Regression: a reconnect read up to the log's new end, so a growing log was read for ever."""
    log, block = log_of(there), pack_block([b"a", b"b", b"c"])
    log.append(block, None)
    asked = f"{RECORDS}?from=-3&at_tail={at_tail}"
    first = events_in((await there.get(asked, **SSE)).body)
    assert [number for number, *_ in first] == ["3..3", "3..3"]
    log.append(block, None)
    answer = await there.get(asked, **SSE, **{"last-event-id": "3..3"})
    assert (answer.status, answer.body) == (204, b"")
    rest = events_in((await there.get(asked, **SSE, **{"last-event-id": "1..3"})).body)
    assert [each["offset"] for each in rest[0][2]["records"]] == [1, 2]
    assert rest[1:] == [("3..3", "stopped", {"offset": 3})]
    beyond = await there.get(asked, **SSE, **{"last-event-id": "5..3"})
    assert beyond.status == 204  # A reported gap passed the end.
    for odd in ("1..", "1..-3", "1..latest", "x..3", "1..2..3"):
        answer = await there.get(asked, **SSE, **{"last-event-id": odd})
        assert answer.status == (200 if odd == "1.." else 400), odd


async def test_end_in_last_event_id_extends_no_range_and_ends_no_follow(there: Site) -> None:
    """A follower ignores the end in its event ID; an earlier request may have asked to stop."""
    log, block = log_of(there), pack_block([b"a", b"b", b"c"])
    log.append(block, None)
    log.append(block, None)
    asked = f"{RECORDS}?until=4&at_tail=stop"
    ranged = events_in((await there.get(asked, **SSE, **{"last-event-id": "3..99"})).body)
    assert ranged[-1] == ("4..4", "stopped", {"offset": 4})
    following = f"{RECORDS}?at_tail=follow"
    async with there.open("GET", following, b"", **SSE, **{"last-event-id": "3..4"}) as stream:
        heard: list[int] = []
        async for part in stream.parts():
            for _, _, data in events_in(part):
                heard += [each["offset"] for each in data.get("records", ())]
            if 5 in heard:
                break
    assert heard == [3, 4, 5]


@pytest.mark.parametrize(("head", "offsets"), [(2, [2]), (5, [])])
async def test_read_from_earliest_survives_concurrent_truncation(
    there: Site, monkeypatch: pytest.MonkeyPatch, head: int, offsets: list[int]
) -> None:
    """Regression: the read failed if the log was truncated after its end had been found."""
    log, found_before = log_of(there), there.core.find_offset
    log.append(pack_block([b"a", b"b", b"c"]), None)

    async def truncated_behind(request: messages.FindOffset, due: float) -> messages.FoundOffset:
        found = await found_before(request, due)
        if log.tail > 3:
            return found
        log.append(pack_block([b"d", b"e"]), None)
        log.head = Offset(head)
        return found

    monkeypatch.setattr(there.core, "find_offset", truncated_behind)
    answer = await there.get(f"{RECORDS}?from=earliest&at_tail=stop&on_truncated=fail", **SSE)
    assert answer.status == 200
    told = events_in(answer.body)
    assert [each["offset"] for *_, data in told for each in data.get("records", ())] == offsets
    assert told[-1][1] == "stopped"


async def test_resume_at_the_end_of_a_range_is_204(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds with a free turn and without one."""
    log_of(there).append(pack_block([b"a", b"b", b"c"]), None)
    asked = f"{RECORDS}?from=0&until=2&heartbeat_ms=100"
    assert events_in((await there.get(asked, **SSE)).body)[-1][1] == "stopped"
    for count in (1, 0):
        monkeypatch.setattr(there.routing, "_turns", ReaderTurns(count))
        answer = await there.get(asked, **SSE, **{"last-event-id": "2"})
        assert (answer.status, answer.body) == (204, b"")


@pytest.mark.parametrize("is_slow", [False, True])
async def test_follower_that_fell_behind_resumes_at_its_offset(
    there: Site, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """It must not resume at the tail, which it has not reached; `is_slow` stalls the client."""
    monkeypatch.setattr(event_streams, "_PATIENCE_S", 0.01)
    stream_of_one: list[Stream] = []
    starts: list[Any] = []

    async def falls_behind(request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        blocks = log_of(there).blocks
        starts.append(request.start)
        if len(starts) == 1:
            yield Records((blocks[0],), Offset(0), Offset(1))
            yield messages.CaughtUp(Offset(1))
            if is_slow:
                stream_of_one[0].may_send.clear()
            yield messages.FellBehind(Offset(9))
        for offset in range(1, 9):
            yield Records((blocks[offset],), Offset(offset), Offset(offset + 1))
        yield messages.Stopped(Offset(9))

    for number in range(9):
        log_of(there).append(pack_block([b"%d" % number]), None)
    monkeypatch.setattr(there.core, "events", falls_behind)
    async with there.open("GET", RECORDS, b"", **SSE) as stream:
        stream_of_one.append(stream)
        if is_slow:
            while stream.may_send.is_set() or there.core.readers:  # Wait for the reader's release.
                await asyncio.sleep(0.005)
            stream.may_send.set()
        told = [each async for part in stream.parts() for each in events_in(part)]
    assert [number for number, kind, _ in told if kind == "fell_behind"] == ["1"]
    heard = [record["offset"] for _, _, data in told for record in data.get("records", ())]
    assert heard == list(range(9))
    assert starts[1:] == ([AtOffset(Offset(1))] if is_slow else [])


async def test_a_server_that_stops_ends_its_followers(there: Site) -> None:
    async with there.open("GET", RECORDS, b"", **SSE) as stream:
        await anext(stream.parts())
        await there.routing.close()
        async for _ in stream.parts():
            pass  # The stream ends.
    assert not there.core.readers


async def test_tail_watch_reports_appends_and_the_seal(there: Site) -> None:
    async with there.open("GET", f"{LOG}/tail", b"", **LINES) as stream:
        parts = stream.parts()
        first = json.loads(await anext(parts))
        assert (first["event"], first["tail"], first["is_sealed"]) == ("tail", 0, False)
        log_of(there).append(pack_block([b"a"]), None)
        assert json.loads(await anext(parts))["tail"] == 1
        log_of(there).is_sealed = True
        log_of(there).tell()
        ends = [json.loads(line) async for part in parts for line in part.splitlines()]
        assert [each["event"] for each in ends] == ["tail", "sealed"]
    again = await there.get(f"{LOG}/tail", **SSE)
    assert [kind for _, kind, _ in events_in(again.body)] == ["tail", "sealed"]
    answer = await there.get(f"{LOG}/tail", **SSE, **{"last-event-id": "1"})
    assert answer.status == 204  # Without a 204 a browser reconnects for ever.


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{RECORDS}/0", "application/octet-stream"),
        (f"{RECORDS}?from=0&limit=1", "application/json"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/readyz", "text/plain; charset=utf-8"),
    ],
)
async def test_head_has_the_headers_of_get(there: Site, path: str, kind: str) -> None:
    log_of(there).append(pack_block([b"a"]), None)
    got, answer = await there.get(path), await there.ask("HEAD", path)
    assert (answer.status, answer.headers["content-type"]) == (200, kind)
    assert answer.headers == got.headers


async def test_head_of_event_stream_returns_at_once(there: Site) -> None:
    answer = await there.ask("HEAD", RECORDS, b"", **SSE)
    assert (answer.status, answer.body, answer.headers["log-tail"]) == (200, b"", "0")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_event_piece_is_small_or_a_single_record() -> None:
    sizes = [1, 10, 10_000, 20_000, 100_000, 5, 5]
    block = pack_block([b"x" * size for size in sizes])
    records = Records((block,), Offset(1), Offset(6))
    told = list(event_streams.split_event(records, Encoding.AUTO, Offset(1)))
    offsets = [[r["offset"] for r in json.loads(each.facts)["records"]] for each in told]
    assert [offset for piece in offsets for offset in piece] == [1, 2, 3, 4, 5]
    assert [each.next_offset for each in told] == [piece[-1] + 1 for piece in offsets]
    for piece in offsets:
        assert sum(sizes[offset] for offset in piece[:-1]) < 16 * 1024


@pytest.mark.parametrize(
    ("query", "header", "meant"),
    [
        ("", "log-expected-ofset", "log-expected-offset"),
        ("", "log-writer-epoche", "log-writer-epoch"),
        ("", "producer-sequence", "producer-seq"),
        ("?writer_epoch=3", "", ""),
    ],
)
async def test_a_misspelt_condition_appends_nothing(
    there: Site, query: str, header: str, meant: str
) -> None:
    headers = {header: "99"} if header else {}
    answer = await there.ask("POST", RECORDS + query, b"x", **RAW, **headers)
    assert (answer.status, answer.reason) == (400, "INVALID")
    advice = answer.json["next_step"]
    assert advice == (f"did you mean {meant}?" if meant else "leave it out")
    assert log_of(there).tail == 0


async def test_probes_ignore_unknown_query_fields_and_headers(there: Site) -> None:
    """A load balancer may add a query field, and a client its usual headers."""
    headers = {"log-timeout-ms": "100", "log-nobody-knows": "1"}
    for path in ("/healthz?probe=1", "/readyz"):
        assert (await there.ask("GET", path, b"", **headers)).status == 200


async def test_tails_of_many_logs_are_listed_or_watched(there: Site) -> None:
    for name in ("ns/one", "ns/two", "other/log"):
        there.core.cluster.make(name)
    there.core.cluster.log(LogName("ns", "one")).append(pack_block([b"x"] * 3), None)
    answer = json.loads((await there.get("/v1/tails?prefix=ns/o&prefix=ns/t")).body)
    assert {each["log"]: each["tail"] for each in answer["tails"]} == {"ns/one": 3, "ns/two": 0}
    assert all(each["uid"] and each["is_exact"] for each in answer["tails"])
    assert answer["is_complete"]
    async with there.open("GET", "/v1/tails?log=ns/two", b"", **LINES) as stream:
        parts = stream.parts()
        first = json.loads(await anext(parts))
        assert (first["event"], [each["tail"] for each in first["tails"]]) == ("tails", [0])
        assert "next_offset" not in first  # A client that reconnects is sent all tails again.
        there.core.cluster.log(LogName("ns", "two")).append(pack_block([b"x"]), None)
        there.core.cluster.tell()
        news = json.loads(await anext(parts))
        assert [each["tail"] for each in news["tails"]] == [1]
        del there.core.cluster.logs[LogName("ns", "two")]
        there.core.cluster.tell()
        assert json.loads(await anext(parts))["gone"] == ["ns/two"]

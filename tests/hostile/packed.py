"""Small blocks that unpack to many bytes: what they cost a consumer, a log server and its other clients.

A log has `BOMB_BYTES` of packed blocks, each of which unpacks to the maximum size. A consumer reads all of them, a
reader asks the server to unpack them into records, and a stream appends more of them.
"""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from rollbook.api.client.sync import SyncClient, connect
from rollbook.api.rpc_methods import APPEND_STREAM, BY_REQUEST
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Codec, pack_block
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import BATCH_BYTES_CEILING, LogConfig
from rollbook.proto.errors import RollbookError
from rollbook.proto.v1 import log_pb2
from tests.support.bookies import RunningBookie
from tests.support.log_processes import RunningLogServer

LOG: Final = LogName("hostile", "packed")
TARGET: Final = LogName("hostile", "target")
BOMB_BYTES: Final = 128 * 1024
_VALUE: Final = bytes(BATCH_BYTES_CEILING - 4096)
_APPENDED: Final = 100  # Blocks in one message of one stream.
_ANY_SIZE: Final = (("grpc.max_receive_message_length", -1),)
_PATIENCE_S: Final = 60.0
_CONSUMER: Final = """
import re, sys
from rollbook.api.client.sync import connect

def of_status(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

with connect(sys.argv[1]) as client:
    log = client.open(sys.argv[2])
    before = of_status("VmRSS")
    size = sum(len(each.value) for batch in log.read_batches() for each in batch.records())
    print(size, of_status("VmHWM") - before)
"""


@dataclass(frozen=True)
class PackedCost:
    stored_bytes: int
    unpacked_bytes: int
    consumer_bytes: int  # Growth of the consumer.
    taken_apart_bytes: int  # Growth of the server in one read as records.
    appended_bytes: int  # Growth of the server in a stream of appends.
    others_waited_s: float  # Slowest call of another client during the appends.


def block() -> bytes:
    return pack_block([_VALUE], codec=Codec.ZSTD)


def cost_of_packed(server: RunningLogServer, bomb_bytes: int = BOMB_BYTES) -> PackedCost:
    url = f"log://{server.address}"
    process = RunningBookie(server.child)
    bomb = block()
    count = -(-bomb_bytes // len(bomb))
    config = LogConfig(record_bytes_max=BATCH_BYTES_CEILING, batch_bytes_max=BATCH_BYTES_CEILING)
    with connect(url) as client:
        for name in (LOG, TARGET):
            client.open(str(name), create=config)
        thread, inner = client.inside()
        for _ in range(count):
            thread.run(inner.ask(messages.Append(LOG, bomb, None)))
        done = subprocess.run(
            [sys.executable, "-c", _CONSUMER, url, str(LOG)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        unpacked, grown_kib = map(int, done.stdout.split())
        taken_apart = _grown(process, lambda: _read_as_records(server.address))
        waited = [0.0]
        appended = _grown(
            process, lambda: waited.append(_append_beside(server.address, bomb, client))
        )
    return PackedCost(
        count * len(bomb), unpacked, 1024 * grown_kib, taken_apart, appended, max(waited)
    )


def _grown(process: RunningBookie, act: Any) -> int:
    before = process.resident_bytes
    process.forget_peak()
    act()
    return max(0, process.most_resident_bytes - before)


def _read_as_records(address: str) -> None:
    asked = log_pb2.ReadRequest(log=str(LOG), start="0", bytes_max=1024 * 1024, as_records=True)
    with grpc.insecure_channel(address, options=_ANY_SIZE) as channel:
        read: Any = channel.unary_unary(BY_REQUEST[messages.Read].path)
        with suppress(grpc.RpcError):  # Without a bound, a response of gigabytes cannot be sent.
            read(asked.SerializeToString(), timeout=_PATIENCE_S)


def _append_beside(address: str, bomb: bytes, client: SyncClient) -> float:
    """Returns the slowest call of another client while a message of such blocks is checked."""
    message = log_pb2.AppendStreamRequest()
    message.binds.add(ref=1, log=str(TARGET))
    for number in range(_APPENDED):
        message.appends.add(number=number, ref=1, block=bomb)
    slowest, is_over = 0.0, threading.Event()

    def send() -> None:
        try:
            with grpc.insecure_channel(address) as channel:
                append: Any = channel.stream_stream(
                    APPEND_STREAM.path,
                    response_deserializer=log_pb2.AppendStreamResponse.FromString,
                )
                answers = append(iter([message.SerializeToString()]), timeout=_PATIENCE_S)
                assert sum(len(each.results) for each in answers) == _APPENDED
        finally:
            is_over.set()

    sender = threading.Thread(target=send)
    sender.start()
    while not is_over.is_set():
        began = time.monotonic()
        with suppress(RollbookError):
            client.servers()
        slowest = max(slowest, time.monotonic() - began)
    sender.join()
    return slowest

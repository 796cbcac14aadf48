"""Mistakes that raised internal Python errors now raise errors that say what to do."""

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import rollbook
from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.v1 import admin_pb2, cluster_pb2, log_pb2
from tests.regressions.defects import defect

_SHORT: Any = log_pb2.ReadEvent(
    records=log_pb2.Records(blocks=[b"RBK\1"], base_offset=0, next_offset=1)
)


class _HostileServer(grpc.GenericRpcHandler):
    """Has every log that is opened; each log has one block that is shorter than a header."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        match details.method.rpartition("/")[2]:
            case "GetLog":
                return grpc.unary_unary_rpc_method_handler(self._get_log)
            case "ListServers":
                return grpc.unary_unary_rpc_method_handler(self._list_servers)
            case "ReadStream":
                return grpc.unary_stream_rpc_method_handler(self._read)
        return None  # UNIMPLEMENTED.

    def _get_log(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        asked = admin_pb2.GetLogRequest.FromString(request)
        config: Any = pack(LogConfig())
        return admin_pb2.LogState(log=asked.log, config=config, tail=1).SerializeToString()

    def _list_servers(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        return cluster_pb2.Servers().SerializeToString()

    def _read(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield _SHORT.SerializeToString()


@pytest.fixture
def hostile_url() -> Iterator[str]:
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[_HostileServer()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"log://127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@defect(
    "short-block-is-a-struct-error",
    "A block shorter than its header, from a hostile server, ended a reader with struct.error.",
)
def test_short_block_raises_block_corrupt(hostile_url: str) -> None:
    with (
        rollbook.connect(hostile_url) as client,
        pytest.raises((RollbookError, struct.error)) as caught,
    ):
        for _ in client.open("orders").tail():
            pass
    assert isinstance(caught.value, RollbookError), f"a reader ended with {caught.value!r}"
    assert caught.value.code.reason == "BLOCK_CORRUPT"
    assert "this block has 4" in str(caught.value)


@defect(
    "writer-mode-as-text-is-a-key-error",
    '`LogConfig(writer_mode="exclusive")` was taken, and ended in KeyError when a log was made with it.',
)
def test_writer_mode_as_text_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadConfig, match=r"pass WriterMode\.OPEN or WriterMode\.EXCLUSIVE"):
        LogConfig(writer_mode="exclusive")  # type: ignore[arg-type]  # Untyped programs do this.

"""Unpacked bytes of packed blocks are bounded at clients and servers, and counted in quotas."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import pytest

from rollbook.api.access.core.access_file import digest_of
from rollbook.api.client.async_client import DEFAULTS
from rollbook.api.client.sync import SyncClient, connect
from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.logservice import messages
from rollbook.proto.v1 import log_pb2
from tests.regressions.defects import defect
from tests.support import bookies, log_processes
from tests.support.bookies import RunningBookie

_MIB: Final = 1024 * 1024
_BLOCKS: Final = 100  # Each has 4 MiB, packed to a few hundred bytes.
_TOKENS: Final = {name: f"token-of-{name}-0123456789abcdef" for name in ("member", "held")}
_ACCESS: Final = f"""
[principals.member]
tokens = [{{ sha256 = "{digest_of(_TOKENS["member"])}" }}]
read = ["*"]
append = ["*"]
admin = ["*"]

[principals.held]
tokens = [{{ sha256 = "{digest_of(_TOKENS["held"])}" }}]
read = ["*"]
append = ["*"]
append_bytes_per_s = 2_000_000
read_bytes_per_s = 2_000_000
"""
_ANY_SIZE: Final = (("grpc.max_receive_message_length", -1),)
_CONSUMER: Final = """
import re, sys
from rollbook.api.client.sync import connect

def of_status(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

address, token = sys.argv[1:]
with connect("log://" + address, token=token) as client:
    log = client.open("team/bomb")
    before = of_status("VmRSS")
    count = size = 0
    for batch in log.read_batches():
        for record in batch.records():
            count, size = count + 1, size + len(record.value)
    print(count, size, of_status("VmHWM") - before)
"""


@dataclass(frozen=True)
class _Site:
    process: RunningBookie
    address: str

    def client(self, who: str) -> SyncClient:
        packing = replace(DEFAULTS, compresses=True, timeout_s=60.0)
        return connect(f"log://{self.address}", packing, token=_TOKENS[who])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Site]:
    folder = tmp_path_factory.mktemp("bounds")
    with log_processes.running(folder) as cluster:
        access = folder / "access.toml"
        access.write_text(_ACCESS)
        child = cluster.children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            cluster.metadata,
            "--server-name",
            "log-1",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
            "--access-file",
            access,
        )
        found = _Site(RunningBookie(child), str(bookies.address_in(child.line(60.0))))
        with found.client("member") as client:
            log = client.open("team/bomb", create=True)
            for _ in range(_BLOCKS):
                log.append_many([bytes(_MIB - 64)] * 4)
        yield found


@defect(
    "packed-blocks-fill-a-readers-memory",
    "A log with 128 KiB of packed blocks took 3.6 GiB of a Python consumer's memory.",
)
def test_memory_of_reader_of_packed_blocks_is_bounded(site: _Site) -> None:
    command = [sys.executable, "-c", _CONSUMER, site.address, _TOKENS["member"]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    count, size, grown_kib = map(int, done.stdout.split())
    assert (count, size) == (4 * _BLOCKS, 4 * _BLOCKS * (_MIB - 64))
    assert grown_kib < 96 * 1024  # Unbounded, bodies and values take 800 MiB.


@defect(
    "packed-blocks-fill-a-servers-memory",
    "One small read of packed blocks as records had a server unpack hundreds of megabytes.",
)
def test_memory_of_server_unpacking_blocks_is_bounded(site: _Site) -> None:
    before = site.process.resident_bytes
    site.process.forget_peak()
    asked = log_pb2.ReadRequest(log="team/bomb", start="0", bytes_max=_MIB, as_records=True)
    with grpc.insecure_channel(site.address, options=_ANY_SIZE) as channel:
        read: Any = channel.unary_unary(
            BY_REQUEST[messages.Read].path, response_deserializer=log_pb2.ReadAnswer.FromString
        )
        shown = (("authorization", f"Bearer {_TOKENS['member']}"),)
        answer = read(asked.SerializeToString(), metadata=shown, timeout=60.0)
    size = sum(len(record.value) for record in answer.records)
    assert 0 < size <= 5 * _MIB
    assert site.process.most_resident_bytes - before < 64 * _MIB


@defect(
    "quotas-count-packed-bytes-only",
    "A principal held to 100 kB/s appended 600 MB/s and read 95 MB/s, packed.",
)
def test_append_quota_counts_unpacked_bytes(site: _Site) -> None:
    with site.client("held") as client:
        log = client.open("team/bomb")
        began = time.monotonic()
        for _ in range(2):  # Each has twice the quota of a second.
            log.append_many([bytes(_MIB - 64)] * 4)
    assert time.monotonic() - began > 0.5


@defect(
    "quotas-count-packed-bytes-only",
    "A principal held to 100 kB/s appended 600 MB/s and read 95 MB/s, packed.",
)
def test_read_quota_counts_unpacked_bytes(site: _Site) -> None:
    with site.client("held") as client:
        began, records = time.monotonic(), 0
        for batch in client.open("team/bomb").read_batches():
            records += len(batch)
            if records > 4:
                break
    # The first four have 4 MB; the quota allows 2 MB at once.
    assert time.monotonic() - began > 0.5

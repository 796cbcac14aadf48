"""Clients in programs that fork, in pools of processes and in notebooks."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import rollbook
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.proto.runtime.loop_thread import LoopThread
from tests.unit.api.client.conftest import LOOPBACK
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore

# Like `gunicorn --preload`, Celery's prefork pool and PyTorch's loaders: the module is imported
# before the fork, and each process connects when it first needs to.
_FORKS: Final = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
import rollbook
from rollbook import LogName

@cache
def log():
    return rollbook.connect(sys.argv[1]).open("forks", create=True)

def work(number):
    log().append(b"%d" % number)
    batch = next(iter(log().read_batches()))
    return LogName.parse("forks"), batch, next(iter(log().read())), os.getpid()

def fail(number):
    return log().append(b"x" * 2**30 if number else None)

def absent(number):
    return rollbook.connect(sys.argv[1]).open("absent")

if __name__ == "__main__":
    pids = {os.getpid()}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            for name, batch, record, pid in pool.map(work, range(4)):
                assert str(name) == "default/forks" and batch.records()[0] == record
                pids.add(pid)
            try:
                pool.submit(absent, 0).result()
            except rollbook.errors.NoSuchLog as error:
                assert error.ids["log"] == "default/absent", error.ids
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(4))
    print(len(pids) > 2, work(9)[3] == os.getpid(), log().tail_offset(), flush=True)
    pid = os.fork()  # Now this process has used a client.
    if not pid:
        try:
            absent(0)
        except rollbook.errors.ClientClosed as error:
            print("before it forks" in error.next_step, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    os._exit(0) if log().tail_offset() == 13 else os._exit(1)
"""
_CELLS: Final = """
import _thread, threading, rollbook, rollbook.aio
client = rollbook.connect(URL)
log = client.open("notes", create=True)
log.append(b"sync").first_offset
# --- next cell
aclient = rollbook.aio.connect(URL)
alog = await aclient.open("notes")
async with alog.writer() as writer:
    offset = await (await writer.send(b"async"))
offset
# --- next cell
threading.Timer(0.5, _thread.interrupt_main).start()
try:
    for record in log.tail():
        pass
except KeyboardInterrupt:
    print("interrupted")
# --- next cell
values = [record.value for record in log.read()]
await aclient.close()
client.close()
values
"""


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a server in this process with logs in memory."""
    core, thread = FakeCore(FakeCluster(), "a"), LoopThread("server")
    server = thread.run(GrpcServer.start(core, GrpcConfig(LOOPBACK)))
    core.cluster.addresses["a"] = str(server.address)
    yield f"log://{server.address}"
    thread.run(server.close(0))
    thread.close()


def test_forked_and_spawned_workers_can_connect(url: str, tmp_path: Path) -> None:
    """Results and errors of the workers can be pickled."""
    (tmp_path / "forks.py").write_text(_FORKS)
    command = [sys.executable, str(tmp_path / "forks.py"), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["True", "True", "13", "True"]


def test_notebook_uses_both_clients_and_survives_an_interrupt(url: str) -> None:
    nbclient, nbformat = import_module("nbclient"), import_module("nbformat")
    cells = _CELLS.replace("URL", repr(url)).strip().split("\n# --- next cell\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbclient.NotebookClient(notebook, timeout=30, kernel_name="python3").execute()
    first, second, third, last = (cell.outputs[-1] for cell in notebook.cells)
    assert first.data["text/plain"] == "0"
    assert second.data["text/plain"] == "1"
    assert third.text == "interrupted\n"
    assert last.data["text/plain"] == "[b'sync', b'async']"


def test_pickling_a_client_or_a_log_is_refused(url: str) -> None:
    with rollbook.connect(url) as client:
        for each in (client, client.open("handed", create=True)):
            with pytest.raises(TypeError, match="connect there"):
                pickle.dumps(each)

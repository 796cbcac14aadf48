"""`until_stopped` in a process that runs out of file descriptors."""

import subprocess
import sys

CODE = """
import asyncio, os, resource, socket
from rollbook.api.cli.run_until_signal import until_stopped

async def serve() -> None:
    taken = []
    server = await asyncio.start_server(
        lambda reader, writer: taken.append(writer), "127.0.0.1", 0, backlog=1024
    )
    clients = [socket.socket() for _ in range(8)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.dup(2))
    except OSError:
        pass
    for client in clients:
        client.connect(server.sockets[0].getsockname())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not taken
    for each in held:
        os.close(each)
    async with asyncio.timeout(30):
        while len(taken) < len(clients):
            await asyncio.sleep(0.01)
    for each in (*taken, *clients):
        each.close()

asyncio.run(until_stopped(serve()))
"""


def test_server_out_of_files_logs_once_and_recovers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = done.stdout.splitlines()
    assert "connections_not_accepted" in event
    assert "Too many open files" in event

"""Child processes of tests exchange lines with them, and never outlive them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import bookies
from tests.support.processes import Child, ChildFailed, Family, family, kill_at_once
from tests.support.servers import ForkedServer

ECHO = "import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)"
TALK = "import itertools\nfor i in itertools.count(): print(i, flush=True)"
SHORT_S = 60.0


@pytest.fixture
def children() -> Iterator[Family]:
    with family() as started:
        yield started


def python(children: Family, code: str, *arguments: str) -> Child:
    return children.start(sys.executable, "-c", code, *arguments)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


def test_lines_are_exchanged_with_a_child(children: Family) -> None:
    child = python(children, ECHO)
    child.say("a")
    child.say("b")
    assert [child.line(), child.line()] == ["heard a", "heard b"]
    child.end_input()
    assert child.wait() == 0


def test_silent_and_ended_children_raise_different_errors(children: Family) -> None:
    with pytest.raises(ChildFailed, match="said nothing"):
        python(children, ECHO).line(timeout_s=0.01)
    with pytest.raises(ChildFailed, match="ended with 7"):
        python(children, "raise SystemExit(7)").line()


def test_whole_lines_of_a_killed_child_can_be_read(children: Family) -> None:
    child = python(children, "import os; os.write(1, b'one\\ntwo\\nhalf a l'); input()")
    assert child.line() == "one"
    child.kill()
    assert child.last_lines() == ["two"]
    assert not child.is_running


def test_stopped_child_does_not_respond_until_resumed(children: Family) -> None:
    child = python(children, ECHO)
    child.say("a")
    assert child.line() == "heard a"
    child.stop()
    assert state_of(child.pid) == "T"
    child.say("b")
    with pytest.raises(ChildFailed, match="said nothing"):
        child.line(timeout_s=0.05)
    child.resume()
    assert child.line() == "heard b"


def test_several_children_are_killed_at_once(children: Family) -> None:
    several = [python(children, TALK) for _ in range(3)]
    several[0].stop()
    kill_at_once(several)
    assert not any(child.is_running for child in several)
    assert [child.wait() for child in several] == [-signal.SIGKILL] * 3


def test_no_child_outlives_its_family() -> None:
    with family() as children:
        pids = [python(children, TALK).pid for _ in range(3)]
        children.start("sleep", "100").stop()
    assert [state_of(pid) for pid in pids] == ["gone"] * 3


def test_children_die_with_their_test(children: Family) -> None:
    test = python(
        children,
        "import sys; from tests.support.processes import family\n"
        "with family() as f:\n"
        "    child = f.start('sh', '-c', 'echo up; exec sleep 100')\n"
        "    print(child.line(), child.pid, flush=True); input()",
    )
    pid = int(test.line().removeprefix("up "))
    os.kill(test.pid, signal.SIGKILL)
    deadline = time.monotonic() + SHORT_S
    while state_of(pid) not in ("gone", "Z"):
        assert time.monotonic() < deadline


def test_forked_server_is_controlled_like_any_child(children: Family, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    initialise = (sys.executable, "-m", "rollbook.api.cli.main", "cluster", "init")
    assert children.start(*initialise, "--metadata", url).wait() == 0
    server = bookies.start(children, tmp_path / "bk", url, "--log-level", "error")
    assert isinstance(server.child._process, ForkedServer)
    server.wait_ready()
    assert Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1] == str(
        os.getpid()
    )
    server.child.stop()
    assert state_of(server.pid) == "T"
    with pytest.raises(subprocess.TimeoutExpired):
        server.child.wait(timeout_s=0.01)
    server.child.resume()
    server.terminate()
    assert server.child.wait() == 0
    assert state_of(server.pid) == "gone"


def test_forked_server_dies_with_its_test(children: Family, tmp_path: Path) -> None:
    test = python(
        children,
        "import sys; from pathlib import Path; from tests.support import bookies, processes\n"
        "with processes.family() as f:\n"
        "    bookie = bookies.start(f, Path(sys.argv[1]), 'memory://none')\n"
        "    bookie.stop(); print(bookie.pid, flush=True); input()",
        str(tmp_path),
    )
    pid = int(test.line())
    os.kill(test.pid, signal.SIGKILL)
    deadline = time.monotonic() + SHORT_S
    while state_of(pid) not in ("gone", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)

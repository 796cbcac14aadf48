"""Large blocks of memory are reused without new page faults."""

import ctypes
import subprocess
import sys

import pytest

_SCRIPT = """
import resource, sys
from rollbook.proto.runtime import malloc_tuning

if sys.argv[1] != "leave":
    getattr(malloc_tuning, sys.argv[1])()
size = int(sys.argv[2])

def work():
    pieces = [bytes(3 * size), bytes(size)]
    return len(b"".join(pieces))

for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(what: str, size: int) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, str(size)], capture_output=True, text=True, check=True
    )
    return int(told.stdout)


@pytest.mark.parametrize(
    ("what", "size"), [("keep_freed_memory", 1 << 20), ("keep_pieces_of_messages", 1 << 18)]
)
def test_large_blocks_are_reused_without_page_faults(what: str, size: int) -> None:
    is_glibc = hasattr(ctypes.CDLL(None), "mallopt")  # Without glibc the calls must do no harm.
    assert page_faults(what, size) < page_faults("leave", size) / 10 or not is_glibc

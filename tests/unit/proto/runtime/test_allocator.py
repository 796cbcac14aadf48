"""Large pieces of memory come back without fresh pages."""

import ctypes
import subprocess
import sys

_SCRIPT = """
import resource, sys
from rollbook.proto.runtime.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def work():
    pieces = [bytes(3 << 20), bytes(1 << 20)]
    return len(b"".join(pieces))

for _ in range(5):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(what: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what], capture_output=True, text=True, check=True
    )
    return int(told.stdout)


def test_large_pieces_cost_fresh_pages_once() -> None:
    is_glibc = hasattr(ctypes.CDLL(None), "mallopt")  # Elsewhere it must do no harm.
    assert page_faults("keep") < page_faults("leave") / 10 or not is_glibc

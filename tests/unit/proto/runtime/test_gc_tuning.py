"""The collector of cycles in a server."""

import gc
import subprocess
import sys

from rollbook.proto.runtime.gc_tuning import calm_collector


def test_what_is_there_is_looked_at_no_more_and_cycles_still_go() -> None:
    before, count = gc.get_threshold(), gc.get_freeze_count()
    try:
        gc.set_threshold(700)  # It may be calm already, by a command of another test.
        calm_collector()
        assert gc.get_freeze_count() > count
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 700
    finally:
        gc.set_threshold(*before)


def test_garbage_in_cycles_stays_within_bounds() -> None:
    code = """
import weakref
from rollbook.proto.runtime.gc_tuning import calm_collector
class Node: pass
calm_collector()
alive = weakref.WeakSet()
for _ in range(200_000):
    node = Node(); node.self = node; alive.add(node)
print(len(alive))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert int(done.stdout) < 100_000

"""The garbage collector of a server."""

import gc
import subprocess
import sys

from rollbook.proto.runtime.gc_tuning import calm_collector


def test_calm_collector_freezes_objects_and_stays_enabled() -> None:
    before, count = gc.get_threshold(), gc.get_freeze_count()
    try:
        gc.set_threshold(700)  # An earlier test may have calmed it already.
        calm_collector()
        assert gc.get_freeze_count() > count
        assert gc.isenabled()
        assert gc.get_threshold()[0] > 700
    finally:
        gc.set_threshold(*before)


def test_garbage_in_cycles_is_still_collected() -> None:
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

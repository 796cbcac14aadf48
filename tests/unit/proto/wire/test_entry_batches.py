"""The entries of a batch joined into one buffer."""

import random

import pytest

from rollbook.proto.wire.entry_batches import join_bodies, pack_bodies, unpack_bodies


@pytest.mark.parametrize(
    "sizes", [[], [40], [40, 40], [40] * 500, [40, 41], [40] * 500 + [50], [17_000] * 3]
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_joined_bodies_equal_packed_bodies(
    sizes: list[int], kind: type[bytes] | type[memoryview]
) -> None:
    chance = random.Random(7)
    bodies = [chance.randbytes(size) for size in sizes]
    joined = join_bodies([kind(body) for body in bodies])
    assert joined == b"".join(pack_bodies(bodies))
    assert list(unpack_bodies(joined, 0, len(joined))) == bodies

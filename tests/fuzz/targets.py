"""The fuzzed decoders of bytes from outside.

Each module `tests/fuzz/WHAT_targets.py` has a function `targets() -> list[Target]`, which the
fuzzer finds by itself.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollbook.proto.errors import RollbookError
from tests.fuzz.mutator import Refit


@dataclass(frozen=True)
class Target:
    """A decoder and what it guarantees for any input.

    It raises only `errors`, uses at most `memory_bytes_max` beyond its input and less than a
    second. If `encode` is given, decoding an encoded result gives an equal result.
    """

    name: str
    decode: Callable[[bytes], Any]
    errors: tuple[type[RollbookError], ...]
    corpus: tuple[bytes, ...]
    encode: Callable[[Any], bytes] | None = None
    refit: Refit | None = None  # Repairs lengths and checksums around a mutated input.
    memory_bytes_max: int = 1024 * 1024


def every_target() -> list[Target]:
    names = sorted(
        name.removesuffix(".py")
        for name in os.listdir(os.path.dirname(__file__))
        if name.endswith("_targets.py")
    )
    modules = [importlib.import_module(f"tests.fuzz.{name}") for name in names]
    return [target for module in modules for target in module.targets()]

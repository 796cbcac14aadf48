"""What is fuzzed: decoders of bytes that come from outside.

Each module `tests/fuzz/WHAT_targets.py` has a function `targets() -> list[Target]`; being there is
all it takes to be fuzzed.
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
    """A decoder and what is promised of it, whatever bytes it gets.

    It raises nothing but `errors`, takes at most `memory_bytes_max` beyond its input and less than
    a second; and if `encode` is given, decoding what that makes of a result gives an equal one.
    """

    name: str
    decode: Callable[[bytes], Any]
    errors: tuple[type[RollbookError], ...]
    corpus: tuple[bytes, ...]
    encode: Callable[[Any], bytes] | None = None
    refit: Refit | None = None  # Repairs what encloses a mutated input: lengths, checksums.
    memory_bytes_max: int = 1024 * 1024


def every_target() -> list[Target]:
    names = sorted(
        name.removesuffix(".py")
        for name in os.listdir(os.path.dirname(__file__))
        if name.endswith("_targets.py")
    )
    modules = [importlib.import_module(f"tests.fuzz.{name}") for name in names]
    return [target for module in modules for target in module.targets()]

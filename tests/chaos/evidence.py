"""Keeps the evidence of a run that broke a promise before its folder is deleted."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

_KEPT: Final = ("history", "logs")


def keep(folder: Path, of: str) -> str:
    """Copies the evidence and returns a line that says where it is."""
    kept = Path(tempfile.mkdtemp(prefix=f"rollbook-chaos-{of}-"))
    for name in _KEPT:
        shutil.copytree(folder / name, kept / name)
    return f"what everybody was told is kept in {kept}"

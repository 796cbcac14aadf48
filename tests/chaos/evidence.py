"""What a run that broke a promise leaves behind: its folder goes with it."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

_KEPT: Final = ("history", "logs")


def keep(folder: Path, of: str) -> str:
    """A line that says where it is from now on."""
    kept = Path(tempfile.mkdtemp(prefix=f"rollbook-chaos-{of}-"))
    for name in _KEPT:
        shutil.copytree(folder / name, kept / name)
    return f"what everybody was told is kept in {kept}"

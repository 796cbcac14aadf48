"""axe-core, which checks the accessibility of pages. Only tests use it; the wheel does not contain it.

`npm pack` downloads it; the digest is checked, and the file is cached for the next run.
"""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.rest.browser import Page
from tests.tally import missing_piece

_VERSION: Final = "4.14.1"
_SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_KEPT: Final = Path.home() / ".cache" / "rollbook-tests" / f"axe-{_VERSION}.js"
_PATIENCE_S: Final = 60
_RUN: Final = """
    axe.run(document, {resultTypes: ["violations"]}).then(found => JSON.parse(JSON.stringify(
        found.violations.filter(each => ["serious", "critical"].includes(each.impact))
            .map(each => [each.id, each.nodes[0].html.slice(0, 200), each.nodes[0].failureSummary]))))
"""


def source() -> str:
    """Returns its source text, or an empty string if it is not available."""
    if _KEPT.exists() and _is_it(text := _KEPT.read_bytes()):
        return text.decode()
    npm = shutil.which("npm")
    if npm is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                [npm, "pack", "--silent", f"axe-core@{_VERSION}"],
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=_PATIENCE_S,
            )
            with tarfile.open(Path(folder) / f"axe-core-{_VERSION}.tgz") as packed:
                member = packed.extractfile("package/axe.min.js")
                text = member.read() if member else b""
        except (OSError, subprocess.SubprocessError, tarfile.TarError, KeyError):
            return ""
    if not _is_it(text):
        return ""
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    _KEPT.write_bytes(text)
    return text.decode()


def _is_it(text: bytes) -> bool:
    return hashlib.sha256(text).hexdigest() == _SHA256


def missing() -> str:
    return missing_piece("axe", f"axe-core {_VERSION} is not here", "install npm")


def complaints(page: Page, text: str) -> Any:
    """Returns the serious and critical violations on the page."""
    if page.run("typeof axe") == "undefined":
        page.run(f"{text}; 0")
    return page.run_to_its_end(_RUN)

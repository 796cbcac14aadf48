"""Third-party files that the dashboard serves: their versions, digests and licences."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from rollbook.api.dashboard import parts
from tests import sbom

FOLDER = Path(parts.__file__).parent / "vendor"
LISTED: list[dict[str, Any]] = json.loads((FOLDER / "vendored.json").read_text())
_GZIPPED_MAX = 50_000


def test_vendored_files_match_their_listed_digests() -> None:
    """DB6."""
    files = {name: digest for each in LISTED for name, digest in each["files"].items()}
    licences = {each["licence_file"] for each in LISTED}
    there = {each.name: each.read_bytes() for each in FOLDER.iterdir()}
    assert there.keys() == {*files, *licences, "vendored.json"}
    assert {name: hashlib.sha256(there[name]).hexdigest() for name in files} == files
    assert sum(len(gzip.compress(there[name])) for name in files) < _GZIPPED_MAX
    for each in LISTED:
        assert each["version"].encode() in b"".join(there[name] for name in each["files"])


def test_bill_of_materials_lists_the_vendored_files() -> None:
    """DB6."""
    named = {(each["name"], each["version"]) for each in sbom.vendored()}
    assert named == {(each["name"], each["version"]) for each in LISTED}

"""Pages and examples speak HTTP by curl."""

import shutil

from tests.tally import missing_piece


def is_there() -> bool:
    return shutil.which("curl") is not None


def missing() -> str:
    return missing_piece("curl", "there is no curl", "apt-get install curl")

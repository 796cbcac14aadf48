"""Finds curl and jq, which pages and examples use for HTTP."""

import shutil

from tests.tally import missing_piece


def is_there() -> bool:
    return shutil.which("curl") is not None


def missing() -> str:
    return missing_piece("curl", "there is no curl", "apt-get install curl")


def missing_with_jq() -> str:
    """The reason of a skip; empty if both programs are there."""
    if not is_there():
        return missing()
    return "" if shutil.which("jq") else missing_piece("jq", "there is no jq", "apt-get install jq")

"""The commands on the page about HTTP work as written and print what the page shows."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support import curl, pages
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "http.md"
_PLACE: Final = "http://127.0.0.1:7480/v1"


def test_commands_of_the_http_page_print_what_it_shows(tmp_path: Path) -> None:
    if not curl.is_there():
        pytest.skip(curl.missing())
    with running_dev(tmp_path / "data", bookies=1) as dev:
        (place,) = re.findall(r"^rest +(\S+)$", dev.said, re.MULTILINE)
        script = "\n".join(pages.blocks(PAGE, "sh"))
        assert _PLACE in script
        told = pages.run(["sh", "-euc", script.replace(_PLACE, place)], tmp_path)
    assert told == "".join(pages.blocks(PAGE, "text"))

"""The page about security works as written, with a server that has TLS and an access file."""

import os
import re
import sys
from pathlib import Path
from typing import Final

from tests.support import pages, processes
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "security.md"
_SERVER: Final = re.compile(r"^    rollbook (server all (?:.*\\\n)*.*)$", re.MULTILINE)
_PATIENCE_S: Final = 60.0


def test_commands_of_the_security_page_work_as_written(tmp_path: Path) -> None:
    before, _, after = PAGE.read_text().partition("## A server\n")
    prepare, use = (
        "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        for text in (before, after)
    )
    shown = pages.run(["sh", "-euc", prepare], tmp_path)
    assert re.search(r"^reports +team/\* +- +- +team/salaries", shown, re.MULTILINE)
    (command,) = _SERVER.findall(PAGE.read_text())
    command = command.replace(":7400", ":0").replace(":7480", ":0")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with processes.family() as children:
        child = children.start(
            "sh",
            "-euc",
            f"cd {tmp_path}; exec rollbook {command} --bookies 1",
            environment={"NO_COLOR": "1", "PATH": path},
        )
        said = ""
        while not said.rpartition("\n")[2].startswith("ready:"):
            said += "\n" + child.line(_PATIENCE_S)
        (rest,) = re.findall(r"^rest +https://(\S+?)(?:/v1)?$", said, re.MULTILINE)
        address = said.rpartition(" on ")[2].strip()
        use = use.replace("127.0.0.1:7400", address).replace("127.0.0.1:7480", rest)
        told = pages.run(["sh", "-euc", use], tmp_path)
    assert told.splitlines()[-6:] == ["1", "hello", "that ended with 6", "401", "403", "hello"]

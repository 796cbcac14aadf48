"""The programs on the page about state machines are short and work as written, like the example."""

import json
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.chaos.logs.conductor import free_ports
from tests.support import pages, processes
from tests.support.dev import running_dev
from tests.support.processes import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "state-machines.md"
EXAMPLE: Final = REPOSITORY / "examples" / "kv" / "store.py"
_PLACE: Final = "log://127.0.0.1:7400"
_LINES_MAX: Final = 40
_PATIENCE_S: Final = 60.0
_SHOWN: Final = ("Ada\nAda\n{'12A': 'Ada'}\n", "0 0\n", "1000\n")


def test_the_programs_run_as_written(tmp_path: Path) -> None:
    programs = pages.blocks(PAGE, "python")
    with running_dev(tmp_path / "data", bookies=3) as dev:
        for program, shown in zip(programs, _SHOWN, strict=True):
            assert _PLACE in program
            assert len(program.splitlines()) <= _LINES_MAX
            there = program.replace(_PLACE, f"log://{dev.address}")
            assert pages.run_program(there, tmp_path) == shown
        again = programs[1].replace(_PLACE, f"log://{dev.address}")
        assert pages.run_program(again, tmp_path) == "100 1\n"
        the_example_works(f"log://{dev.address}")


def test_example_state_machine_has_at_most_forty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= _LINES_MAX


def the_example_works(url: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with processes.family() as children:
        node = children.start_module("examples.kv.node", url, address)
        assert node.line(_PATIENCE_S) == f"ready: {address}"
        assert node.line(_PATIENCE_S) == "leads since epoch 1"
        assert asked(address, "GET", "colour") == (404, "")
        assert asked(address, "PUT", "colour", "red") == (200, "")
        assert asked(address, "PUT", "colour?expect=green", "blue") == (409, "red")
        assert asked(address, "PUT", "colour?expect=red", "blue") == (200, "red")
        assert asked(address, "GET", "colour") == (200, "blue")
        status, told = asked(address, "GET", "")
        assert (status, json.loads(told)) == (200, {"leader": address, "applied": 3, "epoch": 1})
        assert asked(address, "DELETE", "colour") == (200, "blue")
        node.terminate()
        assert node.wait() == 0


def asked(address: str, method: str, path: str, body: str = "") -> tuple[int, str]:
    request = Request(f"http://{address}/{path}", data=body.encode(), method=method)
    try:
        with urlopen(request, timeout=_PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()

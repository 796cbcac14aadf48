"""Control sequences in text of other users do not reach the terminal."""

from collections.abc import Iterator
from typing import Final

import pytest

from rollbook.api.client.sync import connect
from rollbook.logservice.log_config import LogConfig, WriterMode
from tests.regressions.defects import defect
from tests.support import commands
from tests.support.dev import running_dev

_CLEARS: Final = "\x1b[2J\x1b]0;owned\x07"  # Clears the screen and sets the window title.
_LOG: Final = "team/shown"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_dev(tmp_path_factory.mktemp("dev"), 1) as dev:
        url = dev.address if "://" in dev.address else f"log://{dev.address}"
        with connect(url) as client:
            config = LogConfig(writer_mode=WriterMode.EXCLUSIVE, description=f"d{_CLEARS}")
            log = client.open(_LOG, create=True)
            log.update(writer_mode=config.writer_mode, description=config.description)
            log.acquire_writer(f"h{_CLEARS}")
        yield url


@defect(
    "escape-sequences-in-output",
    "Escape sequences in a holder or a description took effect in the terminal that showed it.",
)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("log", "show", _LOG), "d"),
        (("explain", _LOG), "h"),
        (("log", "writer", "show", _LOG), "h"),
        (("log", "writer", "acquire", _LOG, "--holder", "me"), "h"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_output_escapes_control_sequences_in_text_of_others(
    server: str, arguments: tuple[str, ...], text: str
) -> None:
    done = commands.run(*arguments, environment={"ROLLBOOK_SERVER": server})
    said = (done.stdout + done.stderr).decode()
    assert text + r"\x1b[2J\x1b]0;owned\x07" in said
    assert "\x1b" not in said
    assert "\x07" not in said

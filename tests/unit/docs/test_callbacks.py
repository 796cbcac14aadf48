"""The code in `docs/operations.md` with which receivers verify signatures."""

import json
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from rollbook.recovery.core.callback_queue import RegisteredCallback, body_of
from rollbook.recovery.core.event_derivation import Event, EventKind
from tests.support import pages
from tests.support.processes import REPOSITORY

PAGE = REPOSITORY / "docs" / "operations.md"
CALLBACK = RegisteredCallback("5f" * 16, "https://hooks.example.com/", "5ec3e7" * 10)
EVENT = Event("lifecycle/bk-1@1f.0", EventKind.LIFECYCLE, 1, "lifecycle/bk-1", ("bk-1",))


def test_documented_python_and_openssl_code_verifies_signatures(tmp_path: Path) -> None:
    """CL4."""
    body, now_ms = body_of(EVENT), time.time_ns() // 1_000_000
    headers = CALLBACK.headers(EVENT, body, now_ms)
    scope: dict[str, Any] = {}
    (code,) = [each for each in pages.blocks(PAGE, "python") if "def is_ours" in each]
    exec(code, scope)
    is_ours = scope["is_ours"]
    assert is_ours(CALLBACK.secret, headers, body)
    assert json.loads(body)["id"] == EVENT.id
    for secret, changed, said in (
        ("other", headers, body),
        (CALLBACK.secret, headers, body + b" "),
        (CALLBACK.secret, headers | {"rollbook-time": str(now_ms // 1000 + 1)}, body),
        (CALLBACK.secret, CALLBACK.headers(EVENT, body, now_ms - 600_000), body),
    ):
        assert not is_ours(secret, changed, said)
    (line,) = re.findall(r"^    (\{ printf .*openssl.*)$", PAGE.read_text(), re.MULTILINE)
    (tmp_path / "body").write_bytes(body)
    (tmp_path / "callback.secret").write_text(f"{CALLBACK.secret}\n")
    script = f"TIME={shlex.quote(headers['rollbook-time'])}; {line}"
    printed = subprocess.check_output(["sh", "-euc", script], cwd=tmp_path, text=True)
    assert f"v1={printed.strip()}" == headers["rollbook-signature"]

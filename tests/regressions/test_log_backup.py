"""Backup and restore of a log as docs/operations.md describes."""

import json
from pathlib import Path
from typing import Any

from tests.regressions.defects import defect
from tests.support import commands
from tests.support.dev import running_dev


@defect(
    "backup-of-a-truncated-log-fails-and-none-restores",
    "The backup command of the operations page failed on truncated logs, and no command restored a backup.",
)
def test_backup_of_a_truncated_log_can_be_restored(tmp_path: Path) -> None:
    with running_dev(tmp_path / "data", bookies=3) as dev:
        environment = {"ROLLBOOK_SERVER": f"log://{dev.address}"}

        def rollbook(*words: str, stdin: bytes = b"") -> bytes:
            done = commands.run(*words, stdin=stdin, environment=environment)
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout

        records: list[dict[str, Any]] = [
            {"value": "gone"},
            {"value": "text", "key": "k", "headers": {"h": "1"}, "event_time_us": 17},
            {"value_base64": "/wA=", "headers_base64": {"b": "/w=="}},
        ]
        lines = "".join(f"{json.dumps(each)}\n" for each in records).encode()
        rollbook("log", "append", "orders", "--create", "--frame", "ndjson", stdin=lines)
        rollbook("log", "truncate", "orders", "--before", "1", "--yes")
        backup = rollbook("log", "read", "orders", "-o", "ndjson")
        rollbook("log", "append", "again", "--create", "--frame", "ndjson", stdin=backup)
        restored = [
            json.loads(line)
            for line in rollbook("log", "read", "again", "-o", "ndjson").splitlines()
        ]
        expected = [each | {"offset": number} for number, each in enumerate(records[1:])]
        assert [
            {k: v for k, v in each.items() if k != "timestamp_us"} for each in restored
        ] == expected

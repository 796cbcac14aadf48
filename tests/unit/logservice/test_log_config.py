import dataclasses
from typing import Any

import pytest

from rollbook.logservice.log_config import BATCH_BYTES_CEILING, LogConfig
from rollbook.proto.errors import BadConfig


def test_the_defaults_hold_together() -> None:
    config = LogConfig()
    assert config.quorum.ack == 2
    assert config.retention_age_s is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"roll_bytes": 0},
        {"roll_entries": 0},
        {"roll_age_s": 0},
        {"roll_age_s": 2**63},
        {"retention_age_s": 0},
        {"retention_bytes": -1},
        {"dedupe_batches": 0},
        {"dedupe_batches": 10**9},
        {"record_bytes_max": 0},
        {"batch_bytes_max": BATCH_BYTES_CEILING + 1},
        {"batch_bytes_max": 1000, "record_bytes_max": 1001},
        {"batch_records_max": 10**9},
        {"delete_grace_s": -1},
        {"labels": (("a", "1"), ("a", "2"))},
        {"labels": tuple((str(n), "") for n in range(65))},
        {"labels": (("a\n", ""),)},
        {"labels": (("a", "x" * 256),)},
        {"description": "x" * 1025},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        dataclasses.replace(LogConfig(), **wrong)

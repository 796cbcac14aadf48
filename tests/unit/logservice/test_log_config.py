import dataclasses
from typing import Any

import pytest

from rollbook.logservice.log_config import BATCH_BYTES_CEILING, ConfigValues, LogConfig
from rollbook.proto.errors import BadConfig, InvalidRequest
from tests.messages import raises_message


def test_defaults_are_valid() -> None:
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
def test_invalid_config_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        dataclasses.replace(LogConfig(), **wrong)


def test_update_changes_only_the_named_fields() -> None:
    """Values of fields that the update does not name are ignored."""
    has = LogConfig(record_bytes_max=1000, batch_bytes_max=3000, description="small")
    changed = has.with_values(ConfigValues(batch_bytes_max=2000), ("batch_bytes_max",))
    assert changed == dataclasses.replace(has, batch_bytes_max=2000)
    assert has.with_values(ConfigValues(batch_bytes_max=2000), ()) == has
    given_up = changed.with_values(ConfigValues(), ("description",))
    assert given_up.description == ""


def test_update_result_is_validated_as_a_whole() -> None:
    has = LogConfig(record_bytes_max=1000, batch_bytes_max=2000)
    with raises_message(BadConfig):
        has.with_values(ConfigValues(record_bytes_max=2001), ("record_bytes_max",))
    both = ConfigValues(record_bytes_max=5000, batch_bytes_max=6000)
    changed = has.with_values(both, ("record_bytes_max", "batch_bytes_max"))
    assert (changed.record_bytes_max, changed.batch_bytes_max) == (5000, 6000)


def test_update_with_unknown_field_or_bad_value_is_rejected() -> None:
    with raises_message(InvalidRequest):
        LogConfig().with_values(ConfigValues(), ("with_values",))
    with raises_message(BadConfig):
        ConfigValues(roll_entries=1)

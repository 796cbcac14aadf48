"""Parsing and validation of `rollbook apply` files, before any log is changed."""

from dataclasses import fields
from pathlib import Path

import click
import pytest

from rollbook.api.cli.apply.apply_command import group as command
from rollbook.api.cli.apply.apply_log_settings import SETTINGS, fields_of, read_spec
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import KIB, MIB, LogConfig, WriterMode
from rollbook.proto.errors import BadConfig, InvalidRequest
from rollbook.proto.quorum import Quorum
from tests.messages import raises_message

EVERYTHING = {
    "copies": 5,
    "ensemble": 7,
    "acks": 3,
    "exclusive": True,
    "labels": {"team": "checkout"},
    "retention_age": "7d",
    "retention_bytes": "10G",
    "roll_bytes": "64M",
    "roll_age": "1h30m",
    "roll_entries": 500,
    "dedupe_batches": 128,
    "dedupe_age": "2d",
    "delete_grace": "1h",
    "record_bytes_max": "64K",
    "batch_bytes_max": 1_000_000,
    "batch_records_max": 100,
    "tail_cache_bytes": "32M",
    "degraded_segments": False,
    "description": "orders of the shop",
}


def test_apply_file_can_set_every_log_setting() -> None:
    assert set(EVERYTHING) == SETTINGS
    said = fields_of(EVERYTHING)
    assert set(said) == {each.name for each in fields(LogConfig)}
    assert LogConfig(**said) == LogConfig(
        quorum=Quorum(7, 5, 3),
        roll_bytes=64 * MIB,
        roll_entries=500,
        roll_age_s=5400,
        retention_age_s=7 * 86_400,
        retention_bytes=10 * 1024 * MIB,
        writer_mode=WriterMode.EXCLUSIVE,
        dedupe_batches=128,
        dedupe_age_s=2 * 86_400,
        record_bytes_max=64 * KIB,
        batch_bytes_max=1_000_000,
        batch_records_max=100,
        tail_cache_bytes=32 * MIB,
        delete_grace_s=3600,
        degraded_segments=False,
        labels=(("team", "checkout"),),
        description="orders of the shop",
    )


def test_the_help_names_every_setting() -> None:
    told = command.get_help(click.Context(command, terminal_width=200)).split()
    assert {word.rstrip(",") for word in told} >= SETTINGS


def test_none_and_empty_values_reset_settings() -> None:
    given_up = {"retention_age": "none", "retention_bytes": "none", "labels": {}}
    assert fields_of({**given_up, "exclusive": False, "description": ""}) == {
        "retention_age_s": None,
        "retention_bytes": None,
        "labels": (),
        "writer_mode": WriterMode.OPEN,
        "description": "",
    }


def test_missing_quorum_sizes_follow_from_copies_or_acks() -> None:
    assert fields_of({"copies": 5}) == {"quorum": Quorum(5, 5, 3)}
    assert fields_of({"acks": 2}) == {"quorum": Quorum(3, 3, 2)}


@pytest.mark.parametrize(
    ("text", "what", "advice"),
    [
        ("[logs.a]\nretention_ages = '7d'", "'retention_ages'", "did you mean retention_age?"),
        ("[logs.a]\nretention_age_s = 7", "'retention_age_s'", "did you mean retention_age?"),
        ("[logs.a]\ncolour = 'red'", "'colour'", "known: acks, batch_bytes_max, "),
        ("[logs.a]\nretention_age = 7", "retention_age is a text", "write it in quotes"),
        ("[logs.a]\nretention_age = '7 weeks'", "'7 weeks'", "rollbook apply --help"),
        ("[logs.a]\nroll_age = 'none'", "'none'", "rollbook apply --help"),
        (
            "[logs.a]\ndelete_grace = '500ms'",
            "not a whole number of seconds",
            "rollbook apply --help",
        ),
        ("[logs.a]\nroll_bytes = '1'", "roll_bytes 1 is outside", "rollbook apply --help"),
        (
            "[logs.a]\nrecord_bytes_max = 2000000\nbatch_bytes_max = 1000000",
            "record_bytes_max is above batch_bytes_max",
            "rollbook apply --help",
        ),
        ("[logs.a]\nroll_entries = true", "a number from 1", "write roll_entries = 3"),
        ("[logs.a]\nacks = 0", "a number from 1", "write acks = 3"),
        ("[logs.a]\ncopies = 2\nacks = 3", "quorum", "rollbook apply --help"),
        ("[logs.a]\nexclusive = 'yes'", "true or false", "write it without quotes"),
        ("[logs.a]\nlabels = ['x']", "labels are a table", "write { team"),
        ("[logs.a]\nlabels = { team = 3 }", "team is a text", "write it in quotes"),
        ("[logs.orders.v2]", "orders: there is no setting 'v2'", "name the log in quotes"),
        ("[logs.'']", "the log name ''", "rollbook apply --help"),
        ("[logs]\na = 3", "a: no table", "rollbook apply --help"),
        ("[logs.a]\n[logs.'default/a']", "another name of default/a", "rollbook apply --help"),
        ("[log.a]", "unknown section", "known: logs"),
        ("no toml", "is not TOML", "rollbook apply --help"),
    ],
)
def test_invalid_apply_file_is_refused_with_advice(
    tmp_path: Path, text: str, what: str, advice: str
) -> None:
    path = tmp_path / "logs.toml"
    path.write_text(text)
    with pytest.raises(BadConfig) as caught:
        read_spec(str(path))
    assert caught.value.message.startswith(str(path))
    assert what in caught.value.message
    assert caught.value.next_step is not None
    assert caught.value.next_step.startswith(advice)


def test_missing_spec_file_is_an_error(tmp_path: Path) -> None:
    with raises_message(BadConfig) as caught:
        read_spec(str(tmp_path / "nope.toml"))
    assert caught.value.next_step == "name a file that is there and that you may read"


def test_apply_file_without_settings_is_read_as_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    assert read_spec(str(tmp_path / "empty.toml")) == {}
    (tmp_path / "one.toml").write_text("[logs.a]")
    assert read_spec(str(tmp_path / "one.toml")) == {LogName.parse("a"): {}}


@pytest.mark.parametrize(
    ("said", "quorum"),
    [
        ({"copies": 5}, (5, 5, 3)),
        ({"acks": 4}, (4, 4, 4)),
        ({"ensemble": 6}, (6, 3, 2)),
        ({"ensemble": 2}, (2, 2, 2)),
        ({"ensemble": 6, "acks": 4}, (6, 4, 4)),
        ({"ensemble": 6, "copies": 2, "acks": 1}, (6, 2, 1)),
    ],
)
def test_missing_quorum_sizes_follow_from_given_ones(
    said: dict[str, int], quorum: tuple[int, int, int]
) -> None:
    assert fields_of(said)["quorum"] == Quorum(*quorum)


def test_copies_on_fewer_bookies_are_refused() -> None:
    with raises_message(InvalidRequest):
        fields_of({"ensemble": 2, "copies": 3})

"""Options are parsed and checked, and errors name the option."""

from functools import partial
from typing import Any

import pytest

from rollbook.api.spark.core.options import (
    OPTIONS,
    Selection,
    StartPositions,
    sink_options,
    source_options,
    values_of,
)
from rollbook.api.spark.pipelines.log_selection import selection_of
from rollbook.api.spark.tails import namespace_of
from rollbook.logservice.ids import Offset
from rollbook.logservice.position_syntax import Ago, AtOffset, AtTime, Earliest, Latest
from rollbook.proto.errors import BadConfig

GIVEN = {"endpoint": "log://a:7400", "log": "orders"}


def source(**options: str) -> Any:
    return source_options(values_of({**GIVEN, **options}, {}))


def refusal(options: dict[str, str], *, writes: bool = False) -> str:
    understood = partial(sink_options, is_stream=True) if writes else source_options
    with pytest.raises(BadConfig) as refused:
        understood(values_of(options, {}))
    return str(refused.value)


def test_source_options_have_defaults() -> None:
    found = source()
    assert found.selection == Selection(names=("default/orders",))
    assert found.columns == ("log", "offset", "timestamp", "key", "value")
    assert found.starting is None
    assert found.fails_on_data_loss
    assert found.poll_wait_s is None
    assert found.split.bytes_max == 128 * 1024 * 1024


def test_option_names_ignore_case() -> None:
    assert source(MAXOFFSETSPERTRIGGER="5").rows_max == 5


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("earliest", StartPositions(Earliest())),
        ("latest", StartPositions(Latest())),
        ("42", StartPositions(AtOffset(Offset(42)))),
        ("ago:15m", StartPositions(Ago(900_000_000))),
        (
            '{"orders": 7, "b/c": -1, "b/d": -2}',
            StartPositions(
                Earliest(),
                (("b/c", Latest()), ("b/d", Earliest()), ("default/orders", AtOffset(Offset(7)))),
            ),
        ),
    ],
)
def test_starting_offsets_are_parsed(text: str, places: StartPositions) -> None:
    assert source(startingOffsets=text).starting == places


def test_starting_timestamps_are_parsed() -> None:
    assert source(startingTimestamp="1700000000000").starting == StartPositions(
        AtTime(1_700_000_000_000_000)
    )
    by_log = source(startingOffsetsByTimestamp='{"orders": 1000}').starting
    assert by_log.of("default/orders") == AtTime(1_000_000)
    assert by_log.of("default/other") == Earliest()


def test_sizes_and_durations_are_parsed() -> None:
    found = source(maxBytesPerTrigger="2g", maxTriggerDelay="90s", pollWait="250")
    assert (found.bytes_max, found.delay_s_max, found.poll_wait_s) == (2 * 1024**3, 90.0, 0.25)


def test_kafka_option_names_are_accepted() -> None:
    given = {"endpoint": "log://a", "subscribe": "a,ns/b"}
    assert source_options(values_of(given, {})).selection.names == ("default/a", "ns/b")
    given = {"endpoint": "log://a", "subscribePattern": "ns/.*"}
    assert source_options(values_of(given, {})).selection.covers("ns/b")
    assert sink_options(values_of({"endpoint": "log://a", "topic": "a"}, {})).log == "default/a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"foo": "1"}, "option foo='1' is unknown"),
        ({"startingOffset": "earliest"}, "use startingOffsets"),
        ({"kafka.bootstrap.servers": "a:9092"}, "use endpoint"),
        (
            {"kafka.sasl.jaas.config": "secret"},
            "option kafka.sasl.jaas.config is an option of Kafka",
        ),
        (
            {"token": "secret"},
            "option token is an option of Kafka, not of Rollbook · use tokenFile",
        ),
        ({"startingOffsets": "first"}, "option startingOffsets='first' is not earliest, latest"),
        ({"startingOffsets": '{"orders": -3}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders": true}'}, "startingOffsets"),
        ({"startingOffsets": "{broken"}, "startingOffsets"),
        (
            {"maxOffsetsPerTrigger": "0"},
            "option maxOffsetsPerTrigger='0' is not a whole number above 0",
        ),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger='much' is not a size"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps' is not true or false"),
        ({"columns": "value,price"}, "columns='value,price' is not some of log, offset"),
        ({"columns": "value,value"}, "each once"),
        ({"logPattern": "(", "log": ""}, "log"),
        ({"prefix": "a/b"}, "options log and prefix contradict each other"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "contradict each other"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "contradict each other"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"protect": "true"}, "protect needs a cursor"),
        ({"certificate": "/a.pem"}, "option key is missing"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is above"),
        ({"txnId": "a"}, "option txnId is not one for reads"),
        ({"subscribe": "a", "logs": "b"}, "mean the same"),
        ({"log": "Not A Name"}, "option log='Not A Name' is not the name of a log"),
        ({"cursor": "No Name"}, "option cursor"),
    ],
)
def test_invalid_option_is_named_without_secrets(options: dict[str, str], said: str) -> None:
    found = refusal({**GIVEN, **options})
    assert said in found
    assert "secret" not in found


def test_missing_option_is_named() -> None:
    assert "option endpoint is missing" in refusal({"log": "a"})
    assert "no log is named" in refusal({"endpoint": "log://a"})


def test_endpoint_can_come_from_the_environment() -> None:
    assert values_of({"log": "a"}, {"ROLLBOOK_ENDPOINT": "log://b"})["endpoint"] == "log://b"


@pytest.mark.parametrize("options", [{}, {"option.log": "a", "option.endpoint": "log://a"}])
def test_table_without_its_options_explains_the_alternatives(options: dict[str, str]) -> None:
    found = refusal(options)
    assert "CREATE TABLE" in found
    assert "CREATE TEMPORARY VIEW" in found
    assert "WITH (" in found


def test_batch_and_stream_options_exclude_each_other() -> None:
    source(endingOffsets="9").require_for("batch")
    with pytest.raises(BadConfig, match="endingOffsets is for batch reads"):
        source(endingOffsets="9").require_for("stream")
    with pytest.raises(BadConfig, match="cursor is for streaming reads"):
        source(cursor="a").require_for("batch")


def test_read_options_are_refused_for_streaming_writes() -> None:
    assert "option maxOffsetsPerTrigger is not one for writes" in refusal(
        {**GIVEN, "maxOffsetsPerTrigger": "5"}, writes=True
    )


def test_write_into_a_view_ignores_read_options() -> None:
    values = values_of({**GIVEN, "columns": "value", "startingOffsets": "5"}, {})
    assert sink_options(values).log == "default/orders"


def test_every_option_is_for_reads_or_writes() -> None:
    assert all(option.reads or option.writes for option in OPTIONS)


def test_dots_in_log_names_match_literally() -> None:
    """A log name is not a regular expression, even beside a pattern."""
    found = selection_of(["shop/a.b", "shop/c-*", "web.eu/d", "e.f*"])
    for log, covers in (
        ("shop/a.b", True),
        ("shop/axb", False),
        ("shop/c-1", True),
        ("shop/d", False),
        ("web.eu/d", True),
        ("webxeu/d", False),
        ("default/e.f1", True),
        ("default/exf1", False),
    ):
        assert found.covers(log) is covers, log
    assert namespace_of(found.pattern) == ""
    assert namespace_of(selection_of(["shop/a.b", "shop/c-*"]).pattern) == "shop/"


@pytest.mark.parametrize(
    ("pattern", "namespace"),
    [
        ("shop/.*", "shop/"),
        ("shop/(a|b(c|d))|web/x", ""),
        ("shop/(a|b(c|d))[|(]\\|", "shop/"),
        ("shop/a|web/b", ""),
        ("shop/?.*", ""),
        ("sh.p/.*", ""),
    ],
)
def test_pattern_has_a_namespace_only_if_all_alternatives_share_it(
    pattern: str, namespace: str
) -> None:
    """Otherwise logs of the second alternative would be missed."""
    assert namespace_of(pattern) == namespace

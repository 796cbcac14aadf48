"""The fuzzer finds planted bugs and finds none in the decoders of the wire protocol."""

import random
import struct
import time

import pytest

from rollbook.proto.errors import BadFrame
from tests.fuzz import wire_targets
from tests.fuzz.mutator import INPUT_BYTES_MAX, Mutator
from tests.fuzz.run import Failure, fuzz, judge, run
from tests.fuzz.targets import Target, every_target
from tests.golden.bookkeeper import V3_FRAMES

CORPUS = (b"honest bytes", struct.pack(">I", 5) + b"hello")
SMALL = 3_000


def _failures(target: Target, seed: int = 0) -> list[Failure]:
    return [failure for _, found in fuzz([target], SMALL, seed) for failure in found]


def _checked(data: bytes) -> bytes:
    if not data:
        raise BadFrame("nothing")
    return data


def test_correct_decoder_has_no_failure() -> None:
    assert _failures(Target("sound", _checked, (BadFrame,), CORPUS, encode=bytes)) == []


def test_undeclared_exception_is_reported_with_its_input() -> None:
    def decode(data: bytes) -> int:
        (size,) = struct.unpack_from(">I", data)  # Raises struct.error if there are too few bytes.
        return int(size)

    failures = _failures(Target("careless", decode, (BadFrame,), CORPUS))
    assert failures
    for failure in failures:
        with pytest.raises(struct.error):
            decode(failure.data)
        assert failure.data.hex() in str(failure)


def test_value_changed_by_round_trip_is_reported() -> None:
    def decode(data: bytes) -> bytes:
        return _checked(data)[:300]

    def encode(value: bytes) -> bytes:
        return value[:-1] if value[0] & 1 else value

    assert _failures(Target("forgetful", decode, (BadFrame,), CORPUS, encode))


def test_too_much_memory_is_reported() -> None:
    def decode(data: bytes) -> int:
        (size,) = struct.unpack_from(">I", _checked(data).ljust(4, b"\0"))
        return len(bytearray(min(size, 2**22)))  # Trusts a length before it has the bytes.

    assert _failures(Target("trusting", decode, (BadFrame,), CORPUS))


def test_too_slow_decoder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.run.SECONDS_MAX", 0.1)

    def decode(data: bytes) -> None:
        deadline = time.process_time() + (0.11 if data == b"slow" else 0)
        while time.process_time() < deadline:
            pass

    target = Target("slow", decode, (), CORPUS)
    assert judge(target, b"fast") is None
    assert "took" in (judge(target, b"slow") or "")


def test_same_seed_generates_same_inputs() -> None:
    def inputs(seed: int) -> list[bytes]:
        mutator = Mutator(random.Random(seed), CORPUS)
        return [mutator.next() for _ in range(200)]

    assert inputs(1) == inputs(1)
    assert inputs(1) != inputs(2)
    assert max(map(len, inputs(1))) <= INPUT_BYTES_MAX


def test_some_mutated_protobuf_messages_can_be_decoded() -> None:
    """Otherwise the fuzzer would never test what follows the first length."""
    target = next(target for target in every_target() if target.name == "requests")
    frame = V3_FRAMES["WRITE_LAC request"]
    mutator = Mutator(random.Random(3), [frame], target.refit)
    values = set()
    for _ in range(500):
        try:
            values |= {str(value) for value in target.decode(mutator.next())}
        except BadFrame:
            continue
    assert len(values) > 20


def test_fuzzing_wire_decoders_finds_no_failure() -> None:
    """W1, W2."""
    for _, failures in fuzz(wire_targets.targets(), 10_000, seed=42):
        assert not failures, str(failures[0])


def test_fuzz_run_covers_all_targets_and_counts_inputs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def careless(data: bytes) -> None:
        raise ValueError(data)

    targets = [
        Target("sound", _checked, (BadFrame,), CORPUS),
        Target("careless", careless, (BadFrame,), CORPUS),
    ]
    monkeypatch.setattr("tests.fuzz.run.every_target", lambda: targets)
    heard: list[tuple[int, int]] = []
    tally = run(600, seed=1, report=lambda done, total: heard.append((done, total)))
    assert (tally.passed, tally.failed, tally.holds) == (350, 250, False)
    assert heard == [(250, 600), (500, 600), (600, 600)]
    assert "careless, seed 1: raised ValueError" in capsys.readouterr().out

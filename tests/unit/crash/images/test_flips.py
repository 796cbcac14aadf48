"""Rot anywhere in a closed store, and proof that flips find planted flaws."""

import random
from collections.abc import Callable, Iterator

import pytest

from rollbook.bookie import cached_record_reader
from rollbook.bookie.core import replay as replay_module
from rollbook.bookie.core.possible_losses import PossibleLosses
from rollbook.bookie.core.record_format import RecordReader
from rollbook.proto.errors import DataLost
from rollbook.proto.wire.digest import DigestType
from tests.crash.images.flips import KINDS, StoreAtRest, flip, open_at_rest
from tests.crash.images.life import small_and_quiet
from tests.crash.images.run import _flip_tasks


@pytest.fixture(autouse=True)
def _small_and_quiet() -> Iterator[None]:
    with small_and_quiet():
        yield


def flips(store: StoreAtRest, first: int, stride: int) -> tuple[int, list[str]]:
    chance = random.Random(first)
    places = [*store.places(), *store.blank_places()][first::stride]
    results = [flip(store, path, position, chance) for path, position in places]
    return len(results), [result for result in results if result]


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.HMAC])
def test_flipped_byte_never_causes_a_wrong_answer(kind: DigestType) -> None:
    """B1, B2, B3: entries with a valid CRC survive damage to their record."""
    store = StoreAtRest(kind)
    assert store.judge(store.copy(), {}) == 0
    flipped, failures = flips(store, first=1, stride=401)
    assert not failures
    assert flipped > 150


def test_every_byte_is_flipped_once() -> None:
    """Consecutive seeds choose the two different halves."""
    halves = [*_flip_tasks(1, "half"), *_flip_tasks(2, "half")]
    for which in ("half", "once", "all"):
        tasks = halves if which == "half" else _flip_tasks(1, which)
        flipped = [
            (task.kind, place)
            for task in tasks
            for place in range(5_000)[task.first :: task.stride]
        ]
        assert len(set(flipped)) == len(flipped)
        assert {place for _, place in flipped} == set(range(5_000))
        assert len(flipped) == 5_000 * (len(KINDS) if which == "all" else 1)


@pytest.mark.parametrize("size", [512, 4096])
def test_lost_sector_or_page_causes_no_wrong_answer(size: int) -> None:
    """B1, B2: zeros replace durable data; much may be lost, but no read returns wrong data."""
    store = StoreAtRest(DigestType.HMAC)
    for path, position in [place for place in store.places() if place[1] % (3 * size) == 0]:
        try:
            storage = open_at_rest(store.damaged(path, position, bytes(size)))
        except DataLost:
            continue
        store.judge_answers(storage)


def test_sector_with_other_contents_causes_no_wrong_answer() -> None:
    """B1, B2: a sector gets the contents of another one of the same file."""
    store, chance = StoreAtRest(DigestType.HMAC), random.Random(1)
    places = [place for place in store.places() if place[1] % 512 == 0]
    for path, position in places:
        number = store.system.find(path)
        assert number is not None
        contents = store.system.files[number].contents
        other = chance.randrange(len(contents) // 512) * 512
        try:
            image = store.damaged(path, position, bytes(contents[other : other + 512]))
            storage = open_at_rest(image)
        except DataLost:
            continue
        store.judge_answers(storage)


Break = Callable[[pytest.MonkeyPatch], None]
BREAKS: dict[str, Break] = {
    "bodies are not verified": lambda m: m.setattr(
        RecordReader, "body", lambda self, record: self.damaged_body(record)
    ),
    "doubt is forgotten": lambda m: m.setattr(PossibleLosses, "about", lambda *_: False),
    "all is proof": lambda m: m.setattr(cached_record_reader, "proves_itself", lambda *_: True),
    "fences in damaged records are forgotten": lambda m: m.setattr(
        replay_module, "is_of_control", lambda _: False
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_flips_find_broken_storage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StoreAtRest(DigestType.HMAC)
    BREAKS[name](monkeypatch)
    places = list(store.places())
    journal = [place for place in places if place[0].endswith(".journal")]
    for first in range(40):  # Few bytes belong to a fence, and all of them are in the journal.
        chance = random.Random(first)
        some = [*journal[first::41], *places[first::401]]
        if any(flip(store, path, position, chance) for path, position in some):
            return
    pytest.fail("nothing was noticed")

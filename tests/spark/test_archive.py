"""Rules of archives, audits and mirrors, without files and without Spark."""

import json
import random
from itertools import pairwise

import pytest

from rollbook.api.spark.core import mirror_origin
from rollbook.api.spark.core.archive_manifests import (
    ArchiveFile,
    Chain,
    Manifest,
    chain_of,
    faults_of,
    manifest_of,
)
from rollbook.api.spark.core.archive_seam import divide
from rollbook.api.spark.core.audit_findings import (
    Content,
    Mirrored,
    compare,
    judge_file,
    judge_mirror,
    judge_span,
)
from rollbook.api.spark.core.stream_offsets import TailPoint
from rollbook.proto.errors import (
    ArchiveDamaged,
    BeyondTail,
    LogDataLoss,
    LogReplaced,
    UnsupportedVersion,
)

LOG = "shop/orders"


def file(first: int, end: int) -> ArchiveFile:
    return ArchiveFile(
        path=f"{first}-{end}",
        first=first,
        next=end,
        records=end - first,
        xor=hash((first, end)) % (1 << 64),
        bytes=100,
        crc=7,
        first_us=first,
        last_us=end,
    )


def manifest(*bounds: int, uid: str = "u") -> Manifest:
    files = tuple(file(low, high) for low, high in pairwise(bounds))
    return Manifest(LOG, uid, bounds[0], bounds[-1], files)


def chain(*bounds: int) -> Chain:
    found = chain_of(LOG, [manifest(low, high) for low, high in pairwise(bounds)])
    assert found is not None
    return found


def test_manifest_survives_packing() -> None:
    before = manifest(5, 9, 20)
    after = Manifest.unpack(before.pack(), "here")
    assert after == before
    assert (after.count, after.xor) == (15, before.files[0].xor ^ before.files[1].xor)


def test_flipped_bit_of_a_manifest_is_found_or_harmless() -> None:
    data = manifest(0, 7).pack()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        try:
            assert Manifest.unpack(bytes(damaged), "here") == manifest(
                0, 7
            )  # The bit was in white space.
        except (ArchiveDamaged, UnsupportedVersion):
            continue


def test_a_manifest_of_a_newer_release_is_refused() -> None:
    said = json.loads(manifest(0, 7).pack()) | {"v": 2}
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Manifest.unpack(json.dumps(said).encode(), "here")


@pytest.mark.parametrize("seed", range(50))
def test_manifest_needs_files_that_cover_its_range_exactly(seed: int) -> None:
    """SA1"""
    chance = random.Random(seed)
    bounds = sorted(chance.sample(range(100), chance.randint(2, 10)))
    files = [file(low, high) for low, high in pairwise(bounds)]
    chance.shuffle(files)
    repeated = [*files, chance.choice(files)._replace(path="again")]  # A task that ran twice.
    for given in (files, repeated):
        found = manifest_of(LOG, "u", bounds[0], bounds[-1], given)
        assert [(each.first, each.next) for each in found.files] == list(pairwise(bounds))
    wrong = chance.choice(files)
    others = [each for each in files if each is not wrong]
    for bad in (
        others,  # A file is missing.
        [*others, wrong._replace(records=wrong.records - 1)],  # A file lacks a record.
        [
            *files,
            wrong._replace(first=wrong.first - 1, records=wrong.records + 1),
        ],  # A file overlaps.
        [
            *files,
            wrong._replace(xor=wrong.xor ^ 1, path="other"),
        ],  # A second file has other records.
    ):
        with pytest.raises(ArchiveDamaged):
            manifest_of(LOG, "u", bounds[0], bounds[-1], bad)


def test_manifests_with_a_hole_or_an_overlap_are_refused() -> None:
    """SA2"""
    assert chain_of(LOG, []) is None
    found = chain(3, 10, 20)
    assert (found.first, found.next, len(found.files)) == (3, 20, 2)
    for parts, what in (
        ([manifest(0, 5), manifest(6, 9)], r"no manifest has records \[5, 6\)"),
        ([manifest(0, 5), manifest(4, 9)], r"two manifests have records \[4, 5\)"),
        ([manifest(0, 5), manifest(5, 9, uid="v")], "another log that had this name"),
    ):
        with pytest.raises(ArchiveDamaged, match=what):
            chain_of(LOG, parts)
    assert "is about" in faults_of("shop/others", [manifest(0, 5)])[0]


@pytest.mark.parametrize("seed", range(100))
def test_table_has_each_record_once(seed: int) -> None:
    """SA3: for random truncations, starts and ends."""
    chance = random.Random(seed)
    bounds = sorted(chance.sample(range(60), chance.randint(2, 8)))
    archive = chain(*bounds) if chance.random() < 0.9 else None
    last = bounds[-1]
    tail = TailPoint("u", chance.randint(bounds[0], last), last + chance.choice((0, 0, 5)))
    head = archive.first if archive else tail.head
    start = chance.choice((None, -1, chance.randint(head, tail.tail)))
    end = chance.choice((None, chance.randint(0, tail.tail + 5)))
    parts = divide(LOG, archive, tail, start, end)
    found = [at for clip in parts.clips for at in range(clip.start, clip.end)]
    assert all(clip.file.first <= clip.start < clip.end <= clip.file.next for clip in parts.clips)
    for span in parts.spans:
        assert span.start >= tail.head
        found += range(span.start, span.end)
    low = head if start is None else tail.tail if start < 0 else start
    high = tail.tail if end is None else min(max(end, low), tail.tail)
    assert found == list(range(low, high))


def test_a_hole_between_archive_and_log_is_an_error() -> None:
    """SA3"""
    with pytest.raises(LogDataLoss, match=r"\[9, 12\) of shop/orders are neither in the archive"):
        divide(LOG, chain(0, 9), TailPoint("u", 12, 20))
    parts = divide(LOG, chain(0, 9), TailPoint("u", 12, 20), is_strict=False)
    assert [(each.start, each.end) for each in parts.spans] == [(12, 20)]
    with pytest.raises(LogDataLoss, match=r"\[1, 3\) .* before they were archived"):
        divide(LOG, chain(3, 9), TailPoint("u", 5, 20), 1)
    with pytest.raises(BeyondTail):
        divide(LOG, chain(3, 9), TailPoint("u", 5, 20), 21)


def test_archive_is_not_continued_by_a_replaced_log() -> None:
    """SA3: the uid decides, even if the tail is higher."""
    with pytest.raises(LogReplaced):
        divide(LOG, chain(0, 9), TailPoint("v", 0, 20))


def test_deleted_log_is_read_from_its_archive() -> None:
    parts = divide(LOG, chain(0, 9), None)
    assert (len(parts.clips), parts.spans) == (1, ())


def test_log_supplies_records_before_and_after_its_archive() -> None:
    parts = divide(LOG, chain(5, 9), TailPoint("u", 2, 12))
    assert [(each.start, each.end) for each in parts.spans] == [(2, 5), (9, 12)]


def test_audit_finds_files_that_differ_from_their_manifest() -> None:
    one = file(0, 5)
    content = Content(5, one.xor)
    assert judge_file(LOG, one, content, 100, 7, []) == []
    for size, crc, found, faults, kind in (
        (-1, 0, Content(0, 0), [], "file_missing"),
        (99, 7, content, [], "file_changed"),
        (100, 8, content, [], "file_changed"),
        (100, 7, Content(4, one.xor), [], "content"),
        (100, 7, Content(5, one.xor ^ 1), [], "content"),
        (100, 7, content, ["offsets are not dense"], "file_unreadable"),
    ):
        assert [each.kind for each in judge_file(LOG, one, found, size, crc, faults)] == [kind]


def test_an_audit_finds_gaps_and_differences() -> None:
    assert judge_span(LOG, 0, 5, Content(5, 1), []) == []
    assert judge_span(LOG, 0, 5, Content(4, 1), [])[0].what == "it has 4 records, and should have 5"
    assert judge_span(LOG, 0, 5, Content(4, 1), ["gap"])[0].what == "gap"
    assert compare(LOG, 0, 5, Content(5, 1), Content(5, 1), "there") == []
    assert (
        "hash to 0000000000000001" in compare(LOG, 0, 5, Content(5, 1), Content(5, 2), "x")[0].what
    )
    assert "it has 5 records" in compare(LOG, 0, 5, Content(5, 1), Content(6, 1), "x")[0].what


def test_an_audit_compares_a_mirror_with_its_source() -> None:
    """SA6"""
    source = Content(5, 1)
    assert judge_mirror(LOG, 0, 5, source, Mirrored(5, 1, 3, 3)) == []
    for mirror, kind in (
        (None, "mirror"),
        (Mirrored(4, 1, 3, 3), "differs"),
        (Mirrored(6, 1, 3, 3), "differs"),
        (Mirrored(5, 2, 3, 3), "differs"),
        (Mirrored(5, 1, 2, 4), "order"),
    ):
        assert [each.kind for each in judge_mirror(LOG, 0, 5, source, mirror)] == [kind]


def test_headers_name_the_origin_of_a_mirrored_record() -> None:
    headers = {
        mirror_origin.LOG: mirror_origin.as_text(LOG, "u1").encode(),
        mirror_origin.OFFSET: b"42",
    }
    assert mirror_origin.origin_of(headers) == mirror_origin.RecordOrigin(LOG, "u1", 42)
    for wrong in (
        {},
        {mirror_origin.LOG: b"no uid", mirror_origin.OFFSET: b"1"},
        headers | {mirror_origin.OFFSET: b"x"},
    ):
        assert mirror_origin.origin_of(wrong) is None

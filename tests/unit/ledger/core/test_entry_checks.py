"""Which entries of a bookie's reply are accepted."""

import pytest

from rollbook.ledger.core.entry_checks import consecutive, unpack_batch, unpack_last
from rollbook.proto.errors import DigestMismatch
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from tests.support.entries import pack_entry

L1, L2 = LedgerId(1), LedgerId(2)


def body(digest: LedgerDigest, entry_id: int, lac: int | None = None) -> bytes:
    known = EntryId(entry_id - 1 if lac is None else lac)
    return pack_entry(digest, EntryId(entry_id), known, 10 * entry_id, b"payload %d" % entry_id)


@pytest.fixture(params=list(DigestType), ids=lambda each: each.name)
def digest(request: pytest.FixtureRequest) -> LedgerDigest:
    return LedgerDigest(request.param, b"secret", L1)


def test_batch_unpacks_to_the_same_entries_as_singles(digest: LedgerDigest) -> None:
    """RD3: the fast path for batches agrees with unpacking single entries."""
    bodies = [body(digest, entry_id) for entry_id in (3, 4, 7)]
    entries = unpack_batch(digest, [memoryview(each) for each in bodies], EntryId(3), 10)
    assert entries == [digest.unpack_entry(each, None) for each in bodies]
    assert entries[0].payload == b"payload 3"
    assert consecutive(entries, EntryId(3)) == 2
    assert consecutive(entries, EntryId(4)) == 0


def test_batch_entries_before_the_first_flaw_are_returned(digest: LedgerDigest) -> None:
    """RD3."""
    stranger = LedgerDigest(digest.kind, b"secret", L2)
    good = [body(digest, entry_id) for entry_id in range(3)]
    flaws = {
        "another ledger's": body(stranger, 3),
        "not asked for, above": body(digest, 10),
        "not asked for, below": body(digest, 0),
        "twice": body(digest, 2),
        "cut short": body(digest, 3)[: digest.overhead_bytes - 1],
    }
    if digest.kind is not DigestType.DUMMY:
        flaws["a bit flipped in the payload"] = body(digest, 3)[:-1] + b"!"
        flaws["a bit flipped in the length"] = body(digest, 3)[:30] + b"!" + body(digest, 3)[31:]
    for what, flawed in flaws.items():
        found = unpack_batch(digest, [*good, flawed, body(digest, 4)], EntryId(0), 10)
        assert [entry.entry_id for entry in found] == [0, 1, 2], what


def test_batch_starting_with_a_flaw_raises_digest_mismatch(digest: LedgerDigest) -> None:
    """RD3."""
    stranger = LedgerDigest(digest.kind, b"secret", L2)
    for flawed in (body(stranger, 5), body(digest, 4), body(digest, 15), b""):
        with pytest.raises(DigestMismatch):
            unpack_batch(digest, [flawed, body(digest, 5)], EntryId(5), 10)
    assert unpack_batch(digest, [], EntryId(5), 10) == []


@pytest.mark.parametrize(("entry_id", "lac"), [(5, 4), (5, -1), (0, -1)])
def test_last_entry_with_a_lac_below_its_id_is_accepted(entry_id: int, lac: int) -> None:
    digest = LedgerDigest(DigestType.DUMMY, b"", L1)
    assert unpack_last(digest, body(digest, entry_id, lac)).entry_id == entry_id


@pytest.mark.parametrize(("entry_id", "lac"), [(5, 5), (5, 2**40), (0, 0), (5, -2)])
def test_last_entry_with_an_impossible_lac_is_rejected(entry_id: int, lac: int) -> None:
    """RD1, FR1."""
    digest = LedgerDigest(DigestType.DUMMY, b"", L1)
    with pytest.raises(DigestMismatch):
        unpack_last(digest, body(digest, entry_id, lac))

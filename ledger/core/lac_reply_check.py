"""Checks the response of a bookie that was asked for its LAC.

A bookie returns the writer's last explicit LAC and its last entry with its LAC; both are checked
against their digests. A valid LAC counts, whatever else the response says. A bookie counts as heard
if it returns at least one of the two and nothing invalid, or says that it has neither (RD1).
"""

from dataclasses import dataclass

from rollbook.ledger.core.entry_checks import unpack_last
from rollbook.proto.errors import BookieFailed, DigestMismatch, Missing, RollbookError
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.wire.digest import LedgerDigest
from rollbook.proto.wire.messages import ReadLacReply, Refusal, Reply


@dataclass(frozen=True, slots=True)
class LacProof:
    last_add_confirmed: EntryId = NO_ENTRY
    highest_entry: EntryId = NO_ENTRY
    silence: type[RollbookError] | None = None  # The reason why the bookie does not count as heard.


def judge_lac(digest: LedgerDigest, answer: Reply | RollbookError) -> LacProof:
    if isinstance(answer, RollbookError):
        return LacProof(silence=type(answer))
    if isinstance(answer, Refusal):
        return LacProof(silence=answer.error)
    if not isinstance(answer, ReadLacReply):
        return LacProof(silence=BookieFailed)
    lac = highest = NO_ENTRY
    silence = answer.error
    if silence is not None and issubclass(silence, Missing):
        silence = None
    try:
        if answer.packet is not None:
            lac = digest.unpack_lac(answer.packet)
    except DigestMismatch:
        silence = DigestMismatch
    try:
        if answer.last_entry is not None:
            entry = unpack_last(digest, answer.last_entry)
            lac, highest = max(lac, entry.last_add_confirmed), entry.entry_id
    except DigestMismatch:
        silence = DigestMismatch
    return LacProof(lac, highest, silence)

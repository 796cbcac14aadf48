"""Control blocks: entries without records, which owners write into a log for later owners and readers.

    Follows         the first entry of every segment: the ledger before it and that ledger's last entry
                    (-1 and -1 in a log's first segment), and the log's state at this point
    Snapshot        the same state at intervals, so that a take-over replays little
    Opened          which server took the log over, and why
    WriterAcquired  from here on this writer epoch is in force
    WriterReleased  this writer epoch is given up
    ProducerBegun   from here on this epoch of the producer is in force
    Barrier         no content: its confirmation shows that its writer is still the owner
    Sealed          the log ends here

A control block has no records, so it takes no offset: it is stamped with the offset of the next record. The
state is opaque here; `core/replayed_state.py` defines it. Kinds that this release does not know are skipped.
"""

from dataclasses import dataclass, fields
from typing import Final

from rollbook.logservice.core.record_block import Block, pack_control_block
from rollbook.logservice.ids import OwnerEpoch, ServerId, WriterEpoch
from rollbook.logservice.schema.control_pb2 import Control as Message
from rollbook.proto.errors import BadMetadata, BlockCorrupt
from rollbook.proto.formats.checked_protobuf import unpack_binary
from rollbook.proto.ids import EntryId, LedgerId

NO_LEDGER: Final = LedgerId(-1)


@dataclass(frozen=True, slots=True)
class Follows:
    ledger_id: LedgerId
    last_entry: EntryId
    state: bytes
    lived: bytes = b""
    counts: bytes = b""


@dataclass(frozen=True, slots=True)
class Snapshot:
    state: bytes
    # Not a part of `state`, so that older releases can read `state`. Empty in blocks that an older release wrote.
    lived: bytes = b""
    # Record counts of producers; not a part of `state`, for the same reason as `lived`.
    counts: bytes = b""


@dataclass(frozen=True, slots=True)
class Opened:
    owner_epoch: OwnerEpoch
    server_id: ServerId
    reason: str


@dataclass(frozen=True, slots=True)
class WriterAcquired:
    epoch: WriterEpoch
    holder: str
    ttl_ms: int
    attempt: str = ""  # Identifies a request that is repeated because its response was lost.


@dataclass(frozen=True, slots=True)
class WriterReleased:
    epoch: WriterEpoch


@dataclass(frozen=True, slots=True)
class ProducerBegun:
    producer: bytes
    epoch: int
    is_new: bool  # True: the log did not know the producer.


@dataclass(frozen=True, slots=True)
class Barrier:
    pass


@dataclass(frozen=True, slots=True)
class SealBlock:
    pass


Control = (
    Follows
    | Snapshot
    | Opened
    | WriterAcquired
    | WriterReleased
    | ProducerBegun
    | Barrier
    | SealBlock
)

# Each kind of message, by its name in the oneof `kind`, has the same fields as its class.
_KINDS: Final[dict[str, type[Control]]] = {
    "follows": Follows,
    "snapshot": Snapshot,
    "opened": Opened,
    "writer_acquired": WriterAcquired,
    "writer_released": WriterReleased,
    "producer_begun": ProducerBegun,
    "barrier": Barrier,
    "sealed": SealBlock,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def pack_control(control: Control) -> bytes:
    """The control as a block. The caller stamps it like a block of records."""
    message = Message()
    content = getattr(message, _NAMES[type(control)])
    content.SetInParent()
    for field in fields(control):
        setattr(content, field.name, getattr(control, field.name))
    return pack_control_block(message.SerializeToString(deterministic=True))


def unpack_control(block: Block) -> Control | None:
    """Decode a control block. Returns None for a kind that this release does not know. Raises
    `BlockCorrupt`.
    """
    said = block.control()
    try:
        message = unpack_binary(Message, said, bytes_max=len(said))
    except BadMetadata as error:
        raise BlockCorrupt(error.message) from None
    name = message.WhichOneof("kind")
    if name is None:
        return None
    kind, content = _KINDS[name], getattr(message, name)
    return kind(*(getattr(content, field.name) for field in fields(kind)))

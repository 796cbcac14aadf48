"""The bytes of a log's node: its ledger list, and the token of the write that stored it.

The format is the protobuf of `schema/log_node.proto`. A release reads the versions that it knows, and refuses
newer ones: it writes a list back as a whole, and would lose fields that it does not know. So a field that must
not be lost needs a new version. A list without such a field is written in the previous version, so that older
releases can read it: version 2 is only for logs whose settings forbid degraded segments. A closed segment of
usual size takes about 50 bytes, 64 at most; values that follow from other segments (bases, consecutive ids)
are not written. A list has to fit into one node of the metadata store.
"""

from dataclasses import dataclass
from typing import Any, Final

from rollbook.logservice.core.ledger_list import (
    FlawedList,
    LedgerList,
    ListedLogState,
    ListedSegmentState,
    LogEvent,
    Segment,
)
from rollbook.logservice.ids import (
    FIRST_OFFSET,
    LogName,
    LogUid,
    Offset,
    OwnerEpoch,
    SegmentId,
    ServerId,
    ServerInfo,
)
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.schema import log_node_pb2 as schema
from rollbook.proto.errors import BadMetadata, Invalid, InvalidRequest, UnsupportedVersion
from rollbook.proto.formats.checked_protobuf import as_text, pack_binary, unpack_binary
from rollbook.proto.formats.node_byte_checks import METADATA_BYTES_MAX
from rollbook.proto.ids import LedgerId
from rollbook.proto.quorum import Quorum

FORMAT_VERSION: Final = 1
_NEWEST_VERSION: Final = 2  # For lists with settings that releases with version 1 would lose.
TOKEN_BYTES: Final = 16
_NODE_BYTES_MAX: Final = METADATA_BYTES_MAX - 64 * 1024  # Leaves room for the store's own frames.

_STATES: Final = {
    schema.OPEN: ListedLogState.OPEN,
    schema.SEALED: ListedLogState.SEALED,
    schema.DELETED: ListedLogState.DELETED,
}
_STATE_NUMBERS: Final = {state: number for number, state in _STATES.items()}


def pack_log_node(listed: LedgerList, token: bytes) -> bytes:
    """Raises `InvalidRequest` if the list has become too long for a node."""
    message = schema.LogNode(
        format_version=FORMAT_VERSION if listed.config.degraded_segments else _NEWEST_VERSION,
        token=token,
        uid=listed.uid,
        config=_pack_config(listed.config),
        state=_STATE_NUMBERS[listed.state],
        owner_epoch=listed.owner_epoch,
        owner_id=listed.owner.server_id if listed.owner else "",
        owner_address=listed.owner.address if listed.owner else "",
        preferred_server=listed.preferred_server,
        head=listed.head,
        next_segment_id=listed.next_segment_id,
        base_offset=(listed.segments[0].base_offset or 0) if listed.segments else 0,
        discarded=listed.discarded,
        created_us=listed.created_us,
        free_at_us=listed.free_at_us,
    )
    expected_id = 0
    for segment in listed.segments:
        message.segments.append(_pack_segment(segment, segment.segment_id - expected_id))
        expected_id = segment.segment_id + 1
    for event in listed.events:
        message.events.add(
            kind=event.kind,
            at_us=event.at_us,
            owner_epoch=event.owner_epoch,
            server_id=event.server_id or "",
            reason=event.reason,
            offset=event.offset,
        )
    data = pack_binary(message)
    if len(data) > _NODE_BYTES_MAX:
        raise InvalidRequest(
            f"the list of {len(listed.segments)} segments is too long for the metadata store",
            next_step="truncate the log, or give it larger segments (roll_bytes, roll_age_s)",
        )
    return data


def unpack_log_node(data: bytes) -> tuple[LedgerList, bytes]:
    """The list, and the token of the write that stored it. Raises `BadMetadata`, `UnsupportedVersion`."""
    message = unpack_binary(schema.LogNode, data)
    check_version(message.format_version)
    state = _STATES.get(message.state)
    if state is None:
        raise UnsupportedVersion("a log has an unknown state", state=message.state)
    try:
        return (
            LedgerList(
                uid=LogUid(message.uid),
                config=_unpack_config(message.config),
                created_us=message.created_us,
                state=state,
                owner_epoch=OwnerEpoch(message.owner_epoch),
                owner=_unpack_owner(message),
                preferred_server=as_text(message.preferred_server),
                head=Offset(message.head),
                next_segment_id=SegmentId(message.next_segment_id),
                segments=_unpack_segments(message),
                discarded=tuple(map(LedgerId, message.discarded)),
                events=tuple(map(_unpack_event, message.events)),
                free_at_us=message.free_at_us,
            ),
            message.token,
        )
    except (FlawedList, Invalid) as error:
        raise BadMetadata(f"a log's list contradicts itself: {error}") from None


def check_version(version: int) -> None:
    if not version:
        raise BadMetadata("a node of the log service has no format version")
    if version > _NEWEST_VERSION:
        raise UnsupportedVersion("a node was written by a newer release", format_version=version)


def _unpack_owner(message: schema.LogNode) -> ServerInfo | None:
    if not message.owner_id:
        return None
    return ServerInfo(ServerId(as_text(message.owner_id)), as_text(message.owner_address))


def _pack_segment(segment: Segment, id_gap: int) -> schema.SegmentEntry:
    packed = schema.SegmentEntry(
        id_gap=id_gap,
        ledger_id=segment.ledger_id,
        is_closed=segment.is_closed,
        first_timestamp_us=segment.first_timestamp_us,
        owner_epoch=segment.owner_epoch,
        reason=segment.reason,
        degraded_to=segment.degraded_to,
        began_gap_us=segment.began_us - segment.first_timestamp_us if segment.began_us else 0,
    )
    if segment.is_closed:
        packed.records = segment.records or 0
        packed.bytes = segment.bytes or 0
        last_us = segment.last_timestamp_us or segment.first_timestamp_us
        packed.last_timestamp_gap_us = last_us - segment.first_timestamp_us
    return packed


def _unpack_segments(message: schema.LogNode) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    segment_id, base = -1, Offset(message.base_offset)
    known_base: Offset | None = base
    for packed in message.segments:
        segment_id += 1 + packed.id_gap
        gap_us = packed.began_gap_us
        began_us = packed.first_timestamp_us + gap_us if gap_us else 0
        segment = Segment(
            SegmentId(segment_id),
            LedgerId(packed.ledger_id),
            OwnerEpoch(packed.owner_epoch),
            as_text(packed.reason),
            packed.first_timestamp_us,
            base_offset=known_base,
            degraded_to=packed.degraded_to,
            began_us=began_us,
        )
        if packed.is_closed and known_base is not None:
            known_base = Offset(known_base + packed.records)
            segment = Segment(
                segment.segment_id,
                segment.ledger_id,
                segment.owner_epoch,
                segment.reason,
                segment.first_timestamp_us,
                ListedSegmentState.CLOSED,
                segment.base_offset,
                known_base,
                packed.first_timestamp_us + packed.last_timestamp_gap_us,
                packed.bytes,
                packed.degraded_to,
                began_us,
            )
        elif packed.is_closed:
            raise FlawedList("a CLOSED segment has no base")
        else:
            known_base = None
        segments.append(segment)
    return tuple(segments)


def _unpack_event(packed: schema.Event) -> LogEvent:
    return LogEvent(
        as_text(packed.kind)[:200],
        packed.at_us,
        OwnerEpoch(packed.owner_epoch),
        ServerId(as_text(packed.server_id)) if packed.server_id else None,
        as_text(packed.reason),
        Offset(max(packed.offset, FIRST_OFFSET)),
    )


# --- Configuration ----------------------------------------------------------------------------

_PLAIN: Final = (
    "roll_bytes",
    "roll_entries",
    "roll_age_s",
    "dedupe_batches",
    "dedupe_age_s",
    "record_bytes_max",
    "batch_bytes_max",
    "batch_records_max",
    "tail_cache_bytes",
    "delete_grace_s",
    "description",
)
_OPTIONAL: Final = ("retention_age_s", "retention_bytes")


def _pack_config(config: LogConfig) -> schema.LogSettings:
    quorum = config.quorum
    message = schema.LogSettings(
        ensemble=quorum.ensemble,
        write=quorum.write,
        ack=quorum.ack,
        is_exclusive=config.writer_mode is WriterMode.EXCLUSIVE,
        needs_full_ensemble=not config.degraded_segments,
        labels=[schema.Label(name=name, text=text) for name, text in config.labels],
    )
    for name in (*_PLAIN, *_OPTIONAL):
        if (value := getattr(config, name)) is not None:
            setattr(message, name, value)
    return message


def _unpack_config(message: schema.LogSettings) -> LogConfig:
    as_text(message.description)
    settings: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    for name in _OPTIONAL:
        settings[name] = getattr(message, name) if message.HasField(name) else None
    return LogConfig(
        quorum=Quorum(message.ensemble, message.write, message.ack),
        writer_mode=WriterMode.EXCLUSIVE if message.is_exclusive else WriterMode.OPEN,
        degraded_segments=not message.needs_full_ensemble,
        labels=tuple((as_text(label.name), as_text(label.text)) for label in message.labels),
        **settings,
    )


@dataclass(frozen=True, slots=True)
class Displaced:
    """A deleted log, after another log has taken its name. Without a list: a log that was undeleted under
    the name `log`.
    """

    log: LogName
    list: LedgerList | None


def pack_displaced(displaced: Displaced, token: bytes) -> bytes:
    """Raises `InvalidRequest` if the list is too long for a node."""
    listed = displaced.list
    return pack_binary(
        schema.DisplacedLog(
            format_version=FORMAT_VERSION,
            token=token,
            log=str(displaced.log),
            node=b"" if listed is None else pack_log_node(listed, token),
        )
    )


def unpack_displaced(data: bytes) -> tuple[Displaced, bytes]:
    """The displaced log, and the token of its write. Raises `BadMetadata`, `UnsupportedVersion`."""
    message = unpack_binary(schema.DisplacedLog, data)
    check_version(message.format_version)
    try:
        name = LogName.parse(message.log)
    except InvalidRequest as error:
        raise BadMetadata(f"a deleted log: {error.message}") from None
    listed = unpack_log_node(message.node)[0] if message.node else None
    return Displaced(name, listed), message.token

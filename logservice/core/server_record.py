"""The record of a log server in its registration node, which exists as long as the server's session.

JSON, `{"address": "10.0.0.5:7400", "is_draining": false, "logs_owned": 12, "logs_degraded": 0, "logs_unopened": 0,
"segments_lost": 0, "server_id": "log-1~0badcafe", "started_us": 17…, "version": 1, "release": "0.1.0", "http": "",
"quorum": [3, 3, 2], "clock_apart_us": 0}`. The node's name is `server_id`, which identifies this life of the server.
If two lives have the same server name, the one that was registered last counts. Older records have no `http`, no
`logs_degraded`, no `logs_unopened`, no `segments_lost`, no `quorum` and no `clock_apart_us`. `clock_apart_us` is how
far the server's clock is ahead of the metadata store's; null: not compared.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from rollbook.logservice.core.owner_placement import server_name
from rollbook.logservice.ids import ServerId, ServerInfo
from rollbook.proto.errors import BadMetadata, InvalidRequest, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.proto.quorum import Quorum

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ServerRecord:
    info: ServerInfo
    release: str
    started_us: int
    is_draining: bool = False
    logs_owned: int = 0  # The number of logs that it owned at its last report.
    logs_degraded: int = 0  # Owned logs whose segment has too few bookies.
    logs_unopened: int = 0  # Logs that it should own, and cannot open.
    segments_lost: int = 0  # Lost segments that it knows of.
    # The quorum of logs created without a configuration. None: an older release, which omits it.
    quorum: Quorum | None = None
    http: str = ""  # The URL of its REST interface; empty: it has none.
    clock_apart_us: int | None = None  # How far its clock is ahead of the store's; None: not known.

    @property
    def name(self) -> str:
        return server_name(self.info.server_id)


def pack_server_record(record: ServerRecord) -> bytes:
    fields: dict[str, Any] = {
        "version": _VERSION,
        "server_id": record.info.server_id,
        "address": record.info.address,
        "release": record.release,
        "started_us": record.started_us,
        "is_draining": record.is_draining,
        "logs_owned": record.logs_owned,
        "logs_degraded": record.logs_degraded,
        "logs_unopened": record.logs_unopened,
        "segments_lost": record.segments_lost,
        "http": record.http,
        "clock_apart_us": record.clock_apart_us,
    }
    if (quorum := record.quorum) is not None:
        fields["quorum"] = [quorum.ensemble, quorum.write, quorum.ack]
    return json.dumps(fields, sort_keys=True).encode()


def unpack_server_record(data: bytes) -> ServerRecord:
    """Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        version = fields["version"]
        strings = [fields[name] for name in ("server_id", "address", "release")]
        strings.append(fields.get("http", ""))
        numbers = [fields[name] for name in ("started_us", "logs_owned")]
        counts = ("logs_degraded", "logs_unopened", "segments_lost")
        numbers += [fields.get(name, 0) for name in counts]
        is_draining, apart_us = fields["is_draining"], fields.get("clock_apart_us")
        quorum = _unpack_quorum(fields.get("quorum"))
    except (ValueError, KeyError, TypeError, RecursionError, InvalidRequest):
        raise BadMetadata(f"not a record of a log server: {data[:80]!r}") from None
    if version != _VERSION:
        raise UnsupportedVersion(f"a log server's record of version {version!r:.20}")
    if not all(isinstance(each, str) for each in strings) or type(is_draining) is not bool:
        raise BadMetadata(f"not a record of a log server: {data[:80]!r}")
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise BadMetadata(f"not a record of a log server: {data[:80]!r}")
    if apart_us is not None and not (type(apart_us) is int and abs(apart_us) < 2**63):
        raise BadMetadata(f"not a record of a log server: {data[:80]!r}")
    server_id, address, release, http = strings
    started_us, logs_owned, logs_degraded, logs_unopened, segments_lost = numbers
    return ServerRecord(
        ServerInfo(ServerId(server_id), address),
        release,
        started_us,
        is_draining=is_draining,
        logs_owned=logs_owned,
        logs_degraded=logs_degraded,
        logs_unopened=logs_unopened,
        segments_lost=segments_lost,
        quorum=quorum,
        http=http,
        clock_apart_us=apart_us,
    )


def _unpack_quorum(numbers: Any) -> Quorum | None:
    if numbers is None:
        return None
    if not all(type(each) is int for each in numbers):
        raise TypeError
    return Quorum(*numbers)

"""What a log server says of itself where it is registered, for as long as its session lasts.

JSON, `{"address": "10.0.0.5:7400", "is_draining": false, "logs_owned": 12, "server_id":
"log-1~0badcafe", "started_us": 17…, "version": 1, "release": "0.1.0", "http": ""}`. The node goes by the
name of that life of the server; of two lives of one name the one that was registered last counts.
Records of before have no `http`.
"""

import json
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.suggestion import server_name
from rollbook.logservice.ids import ServerId, ServerInfo
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.bounds import check_size

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ServerRecord:
    info: ServerInfo
    release: str
    started_us: int
    is_draining: bool = False
    logs_owned: int = 0  # When it last said.
    http: str = ""  # The URL of its REST; empty: it has none.

    @property
    def name(self) -> str:
        return server_name(self.info.server_id)


def pack_server_record(record: ServerRecord) -> bytes:
    fields = {
        "version": _VERSION,
        "server_id": record.info.server_id,
        "address": record.info.address,
        "release": record.release,
        "started_us": record.started_us,
        "is_draining": record.is_draining,
        "logs_owned": record.logs_owned,
        "http": record.http,
    }
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
        is_draining = fields["is_draining"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadMetadata(f"no record of a log server: {data[:80]!r}") from None
    if version != _VERSION:
        raise UnsupportedVersion(f"a log server's record of version {version!r:.20}")
    if not all(isinstance(each, str) for each in strings) or type(is_draining) is not bool:
        raise BadMetadata(f"no record of a log server: {data[:80]!r}")
    if not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise BadMetadata(f"no record of a log server: {data[:80]!r}")
    server_id, address, release, http = strings
    started_us, logs_owned = numbers
    info = ServerInfo(ServerId(server_id), address)
    return ServerRecord(info, release, started_us, is_draining, logs_owned, http)

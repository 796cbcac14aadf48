"""The lifecycle record of a bookie in our own tree. It says whether the bookie stays, leaves, or
may be removed.

JSON, `{"state": "draining", "token": "4e0c…", "since_ms": 17…, "ledgers": 120, "is_forced": false,
"reason": "", "version": 1}`. A bookie without such a node is Active. A new `token` is drawn for
each write: if a reply was lost, the token shows which process made the write (LR1). The bookie's
record is a separate node, since a start writes that record and a drain writes this one, and neither
may make the write of the other fail. This node is not below the cookie, since Java could not delete
a cookie with a child.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size

_VERSION: Final = 1
_TOKEN: Final = re.compile(r"[0-9a-f]{0,32}")


class LifecycleState(Enum):
    ACTIVE = "active"
    DRAINING = "draining"  # The bookie is read-only, and its ledgers are being copied elsewhere.
    DRAINED = "drained"  # The bookie is read-only, and no ledger names it.
    DRAINING_FAILED = "draining-failed"  # The bookie is read-only, and copying has stopped.


@dataclass(frozen=True, slots=True)
class Lifecycle:
    state: LifecycleState = LifecycleState.ACTIVE
    token: str = ""
    since_ms: int = 0  # When this state began. It is only shown to people.
    ledgers: int = 0  # How many ledgers named the bookie when the drain began.
    # True if the drain was begun although too few bookies remain for some ledgers.
    is_forced: bool = False
    reason: str = ""  # The reason why a drain failed, or why it began again by itself.

    def __post_init__(self) -> None:
        assert _TOKEN.fullmatch(self.token)
        assert self.since_ms >= 0
        assert self.ledgers >= 0

    @property
    def takes_entries(self) -> bool:
        """True if the bookie may be writable and may get copies."""
        return self.state is LifecycleState.ACTIVE


def pack_lifecycle(lifecycle: Lifecycle) -> bytes:
    fields = {
        "version": _VERSION,
        "state": lifecycle.state.value,
        "token": lifecycle.token,
        "since_ms": lifecycle.since_ms,
        "ledgers": lifecycle.ledgers,
        "is_forced": lifecycle.is_forced,
        "reason": lifecycle.reason,
    }
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_lifecycle(data: bytes) -> Lifecycle:
    """Parses a record. Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        version, state = fields["version"], fields["state"]
        token, reason = fields["token"], fields.get("reason", "")
        since_ms, ledgers = fields["since_ms"], fields.get("ledgers", 0)
        is_forced = fields.get("is_forced", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadMetadata(f"not the lifecycle of a bookie: {data[:80]!r}") from None
    if version != _VERSION:
        raise UnsupportedVersion(f"a bookie's lifecycle of version {version!r:.20}")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise BadMetadata(f"{token!r:.80} is not the token of a lifecycle")
    if not isinstance(reason, str) or type(is_forced) is not bool:
        raise BadMetadata(f"not the lifecycle of a bookie: {data[:80]!r}")
    if not all(type(each) is int and 0 <= each < 2**63 for each in (since_ms, ledgers)):
        raise BadMetadata(f"not the lifecycle of a bookie: {data[:80]!r}")
    try:
        known = LifecycleState(state)
    except ValueError:
        raise BadMetadata(f"{state!r:.40} is not a state of a bookie") from None
    return Lifecycle(known, token, since_ms, ledgers, is_forced, reason)

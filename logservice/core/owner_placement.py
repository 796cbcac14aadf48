"""Suggests which server should own a log. All servers compute the same suggestion without talking to each
other.

A log's name puts it into one of 4096 shards. For each shard, the shard and the name of every live server
are hashed together, and the server with the lowest hash is suggested (rendezvous hashing). So when a server
joins or leaves, only its shards move. Two servers may suggest different owners while they disagree about
which servers are alive. Fencing decides which server owns a log; a suggestion decides only which one tries
(SV1).

Suggestions use the name of a server, not the id of its present life. So a restarted server gets its shards back.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Final

from rollbook.logservice.ids import LogName, ServerId

SHARDS: Final = 4096
_LIFE: Final = "~"


def server_name(server_id: ServerId) -> str:
    """The part of a server's id that stays the same across restarts."""
    return server_id.partition(_LIFE)[0]


def life_of(name: str, token: str) -> ServerId:
    return ServerId(f"{name}{_LIFE}{token}")


def shard_of(name: LogName) -> int:
    return _draw(str(name)) % SHARDS


class Suggestions:
    """The suggestions for one set of live servers. Another set needs a new object."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: Final = tuple(sorted(names))
        self._ranks: dict[int, tuple[str, ...]] = {}

    def server_for(self, name: LogName, without: Collection[str] = ()) -> str | None:
        """The first choice that is not in `without`; None if there is none."""
        return next((each for each in self.ranked(shard_of(name)) if each not in without), None)

    def ranked(self, shard: int) -> tuple[str, ...]:
        """All servers, the first choice first."""
        ranks = self._ranks.get(shard)
        if ranks is None:
            ranks = tuple(sorted(self.names, key=lambda each: (_draw(f"{shard}/{each}"), each)))
            self._ranks[shard] = ranks
        return ranks


def _draw(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())

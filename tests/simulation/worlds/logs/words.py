"""Who takes part in this world and what the steps of a case are called."""

from typing import Final

from rollbook.logservice.ids import LogName

BOOKIES: Final = ("b1", "b2", "b3", "b4")
SERVERS: Final = ("s1", "s2", "s3")
PRODUCERS: Final = ("producer-1", "producer-2")
WRITERS: Final = ("writer-1", "writer-2")
READERS: Final = ("reader-1", "reader-2")
VISITORS: Final = ("visitor-1", "visitor-2")
ADMIN: Final = "admin"
STRANGER: Final = "stranger"
OPERATOR: Final = "operator"
REGISTRAR: Final = "registrar"
CLUSTER: Final = "cluster"
METADATA: Final = "metadata"
STORAGE: Final = "storage"
OWNER: Final = "owner"
CLIENTS: Final = (*PRODUCERS, *WRITERS, *READERS, *VISITORS, ADMIN)
PORT: Final = 7400
NOBODYS_PORT: Final = 7401
BRIEF_S: Final = 1  # For so long some logs remember a producer.

LOGS: Final = {"a": LogName("test", "a"), "b": LogName("test", "b")}

# Of producers and writers.
APPEND: Final = "append"  # LOG COUNT: this many batches.
AGAIN: Final = "again"  # LOG: a batch that was acked is sent once more.
EXPECT: Final = (
    "expect"  # LOG COUNT: each on condition that the tail is where the last one left it.
)
ACQUIRE: Final = "acquire"  # LOG: the writer epoch; what is appended from then on bears it.
RELEASE: Final = "release"  # LOG
BARRIER: Final = "barrier"  # LOG: the tail, by a barrier.
# Of readers.
FOLLOW: Final = "follow"  # LOG: from where it stands, for as long as there is chaos.
READ: Final = "read"  # LOG: all of it.
# Of visitors, who ask any server, whichever one owns the log.
RANGE: Final = "range"  # LOG: its last records, until the server says that these are all.
TO_TAIL: Final = "to-tail"  # LOG: a stream of them that stops at the tail.
# Of the administrator.
TRUNCATE: Final = "truncate"  # LOG BACK: to BACK records before what is acked; or beyond it.
MARK: Final = "mark"  # LOG BACK
UNMARK: Final = "unmark"  # LOG
ROLL: Final = "roll"  # LOG
SEAL: Final = "seal"  # LOG
DELETE: Final = "delete"  # LOG
REPLACE: Final = (
    "replace"  # LOG: deletes it, and creates another one under its name, with records of its own.
)
UNDELETE: Final = "undelete"  # LOG: deletes it, and brings it back while its ledgers may be freed.
DRAIN: Final = "drain"  # SERVER
RESUME: Final = "resume"  # SERVER
TRANSFER: Final = "transfer"  # LOG SERVER
# Of servers: what they do by themselves, or by a signal.
TAKE: Final = "take"  # LOG: as if all others suggested it.
STOP: Final = "stop"  # In order; it is started again.
WALK: Final = "walk"  # It looks for ledgers that were never listed.
MISTELL: Final = "mistell"  # All its life it tells others an address where nobody listens.
# Of a stranger.
FENCE: Final = "fence"  # LOG: recovers its last ledger.
# Of all bookies together.
DEAF: Final = "deaf"  # LOG MS: they take nothing for its last ledger.
DEAF_TO_NEW: Final = "deaf-to-new"  # MS: they take nothing for ledgers that are made from now on.
FULL: Final = "full"  # MS: they take nothing, but for fences and recoveries.
THREE: Final = "three"  # There are no more than three, and one of them is away at the end.
AWAY: Final = "away"  # BOOKIE MS: it is stopped, and not registered for as long.
FORMAT: Final = "format"  # BOOKIE MS: so is this one, and formatted; the first one of a run only.


def owner_of(log: str) -> str:
    """In faults: its owner at that moment."""
    return f"{OWNER}-of-{log}"


def address_of(server: str, port: int = PORT) -> str:
    return f"{server}:{port}"

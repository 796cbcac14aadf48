"""Checks the identity of a bookie: whether its directories and the metadata store agree on it.

If a bookie comes back without entries that it acknowledged, and answers "no such entry", others
drop entries that are safe. Therefore it serves only if every directory in which it stored
acknowledged entries is present and belongs to its latest life (B8). The identity is recorded in
three places:

    VERSION          in each directory: the stamp, with cookie, incarnation, start, place, state
    cookies/ID       in BookKeeper's tree: the cookie alone, in BookKeeper's format
    bookies/ID       in our own tree: the incarnation, the start and its token

The incarnation is random, and a new one is drawn whenever a bookie starts without entries.
Therefore an id that was used before can be distinguished from a new one even if its cookie was
removed. A stamp is JOINING until both nodes name its incarnation; nothing is served before it is
MEMBER. Therefore no bookie ever served from directories whose stamp is JOINING and known to neither
node, and the stamp may be dropped.

Starts are counted, so that only one of two copies of the same directories can go on. A start takes
a number above all numbers in the stamps and the node, and draws a token. The start writes both to
the stamps and then to the node, before anything is acknowledged. A stamp with a lower number than
the node was copied, or restored from a state before a later start: entries that were acknowledged
after that state may be missing. The same holds if the numbers are equal and the tokens differ: then
another copy started at the same time or after an interrupted start, and this copy lost. A stamp
with a higher number than the node comes from an interrupted start of the same directories. While
the disk has no room to count the start, the bookie answers reads and promises nothing, not even a
fence.

    5                                  a cookie, as in its node
    bookieHost: "bk-1"
    …
    # rollbook stamp 1                 the version; a reader of cookies takes these lines for comments
    # rollbook incarnation 4e0c…
    # rollbook start 17 9b1d…
    # rollbook place ledger 2
    # rollbook state member
    # rollbook crc32c 8a1b2c3d         of all bytes before this line
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import google_crc32c

from rollbook.bookie.core.record_format import LATER_RELEASE
from rollbook.bookie.core.suggested_commands import FORMAT, REJOIN, WRITE_OFF
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata, LedgerState

STAMP: Final = "VERSION"
STAMP_BYTES_MAX: Final = 1024 * 1024

_VERSION: Final = 1
_VERSIONED: Final = re.compile(rb"# rollbook stamp ([0-9]{1,9})\n(?s:.*)\Z")
_LINES: Final = re.compile(
    rb"# rollbook stamp 1\n"
    rb"# rollbook incarnation ([0-9a-f]{32})\n"
    rb"# rollbook start ([0-9]{1,12})(?: ([0-9a-f]{1,32}))?\n"
    rb"# rollbook place (journal|ledger) ([0-9]{1,4})\n"
    rb"# rollbook state (joining|formatting|member|writing-off)\n\Z"
)
_SUM: Final = re.compile(rb"# rollbook crc32c ([0-9a-f]{8})\n\Z")
# Files that an empty directory may have: files of the file system, and files that we write before
# the stamp.
_NOTHING: Final = frozenset(("lost+found", "lock", f"{STAMP}.new"))
_STORED: Final = re.compile(r"[0-9]{16}\.(journal|log)(\.[a-z]+)?|catalog-[0-9]{10}\.[ab]|reserve")


# --- The stamp --------------------------------------------------------------------------------


class MembershipState(Enum):
    JOINING = "joining"
    FORMATTING = "formatting"  # The bookie is joining under an id that was used before.
    MEMBER = "member"
    # The bookie is a member whose losses are not recorded yet; it will be a MEMBER again.
    WRITING_OFF = "writing-off"


class DirectoryId(NamedTuple):
    """A directory's role and number; the catalog refers to the directories of entry logs by number."""

    kind: str  # "journal" or "ledger".
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Stamp:
    cookie: Cookie
    incarnation: str
    place: DirectoryId
    state: MembershipState
    start: int = 0
    starter: str = ""  # The random token of the start.


def pack_stamp(stamp: Stamp) -> bytes:
    text = pack_cookie(stamp.cookie) + (
        f"# rollbook stamp {_VERSION}\n"
        f"# rollbook incarnation {stamp.incarnation}\n"
        f"# rollbook start {stamp.start}{stamp.starter and ' '}{stamp.starter}\n"
        f"# rollbook place {stamp.place}\n"
        f"# rollbook state {stamp.state.value}\n"
    ).encode("ascii")
    return text + f"# rollbook crc32c {google_crc32c.value(text):08x}\n".encode("ascii")


def unpack_stamp(data: bytes) -> Stamp:
    """Raises `BadMetadata` if a single byte has changed, and `UnsupportedVersion`."""
    checksum = _SUM.search(data)
    if checksum is None or google_crc32c.value(data[: checksum.start()]) != int(checksum[1], 16):
        raise BadMetadata(f"{STAMP} is damaged")
    text = data[: checksum.start()]
    lines, version = _LINES.search(text), _VERSIONED.search(text)
    if version and int(version[1]) != _VERSION:
        raise UnsupportedVersion(
            f"{STAMP} has version {int(version[1])}, but only {_VERSION} can be read",
            next_step=LATER_RELEASE,
        )
    if lines is None:
        raise BadMetadata(f"{STAMP} was not written by Rollbook")
    incarnation, start, starter, kind, number, state = (
        part.decode("ascii") for part in lines.groups(b"")
    )
    cookie = unpack_cookie(data[: lines.start()])
    place = DirectoryId(kind, int(number))
    return Stamp(cookie, incarnation, place, MembershipState(state), int(start), starter)


# --- Findings ---------------------------------------------------------------------------------


class DirectoryCondition(Enum):
    EMPTY = "empty"  # The directory is empty or missing.
    STAMPED = "stamped"
    DAMAGED = "damaged"
    UNSTAMPED = "unstamped"  # The directory holds a store's files but no stamp.
    FOREIGN = "foreign"  # The directory holds files that are not a store's.


@dataclass(frozen=True, slots=True)
class StampedDirectory:
    path: str
    place: DirectoryId
    condition: DirectoryCondition
    stamp: Stamp | None = None


def condition_of(names: Sequence[str]) -> DirectoryCondition:
    """Returns the condition of a directory without a stamp, by the names of its files."""
    names = [name for name in names if name not in _NOTHING]
    if not names:
        return DirectoryCondition.EMPTY
    return (
        DirectoryCondition.UNSTAMPED
        if all(map(is_of_a_store, names))
        else DirectoryCondition.FOREIGN
    )


def is_of_a_store(name: str) -> bool:
    return _STORED.fullmatch(name) is not None


def places_of(cookie: Cookie) -> Iterator[tuple[DirectoryId, str]]:
    yield from ((DirectoryId("journal", n), path) for n, path in enumerate(cookie.journal_dirs))
    yield from ((DirectoryId("ledger", n), path) for n, path in enumerate(cookie.ledger_dirs))


@dataclass(frozen=True, slots=True)
class FoundStamps:
    directories: tuple[StampedDirectory, ...]
    cookie: Cookie | None  # The cookie in its node; None if it is missing or unreadable.
    has_cookie: bool
    incarnation: str | None  # The incarnation in our own node.
    start: int = 0  # The number of the latest start, as our own node says.
    starter: str = ""  # The random token of the latest start, as our own node says.

    @property
    def next_start(self) -> int:
        """A start number above all known numbers."""
        return 1 + max([self.start, *(stamp.start for stamp in self.stamps)])

    @property
    def stamps(self) -> list[Stamp]:
        return [each.stamp for each in self.directories if each.stamp]

    @property
    def was_used(self) -> bool:
        """Returns whether the id was used before."""
        return self.has_cookie or self.incarnation is not None


# --- Diagnosis --------------------------------------------------------------------------------


class StartDecision(Enum):
    NEW = "new"  # No bookie ever served from here, so a new bookie can be made.
    JOINED = "joined"  # Both nodes are present, so the stamps will become MEMBER.
    MEMBER = "member"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class IdentityProblem:
    what: str
    remedy: str
    path: str = ""
    is_wrong_cluster: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    standing: StartDecision
    incarnation: str = ""
    problems: tuple[IdentityProblem, ...] = ()
    is_running: bool = False  # Whether a process uses the directories.


def diagnose(found: FoundStamps, wanted: Cookie) -> Diagnosis:
    """Decides whether a bookie with this cookie may serve from what was found."""
    problems = tuple(_problems(found, wanted))
    if problems:
        return Diagnosis(StartDecision.REFUSED, "", problems)
    stamps = found.stamps
    if all(stamp.state is MembershipState.JOINING for stamp in stamps) and not found.was_used:
        return Diagnosis(StartDecision.NEW)
    incarnation = stamps[0].incarnation
    if all(stamp.state is MembershipState.MEMBER for stamp in stamps):
        return Diagnosis(StartDecision.MEMBER, incarnation)
    return Diagnosis(StartDecision.JOINED, incarnation)


def _problems(found: FoundStamps, wanted: Cookie) -> Iterator[IdentityProblem]:
    """Yields the problems, the most informative first; each names the one action that repairs it."""
    strangers = [problem for problem, _ in _strangers(found, wanted)]
    if strangers:
        yield from strangers
        return
    stamps = found.stamps
    if not found.was_used and all(stamp.state is MembershipState.JOINING for stamp in stamps):
        return
    if not stamps:
        yield IdentityProblem(
            f"the cluster has a bookie {wanted.bookie_id}, but all its directories are empty",
            f"mount its disks; if they are permanently lost: {FORMAT}",
            wanted.ledger_dirs[0],
        )
        return
    if len({stamp.incarnation for stamp in stamps}) > 1 or _is_cut_short(found):
        if any(stamp.state is MembershipState.FORMATTING for stamp in stamps):
            yield IdentityProblem(f"`{FORMAT}` was cut short", f"{FORMAT}, once more")
        elif all(stamp.state is MembershipState.JOINING for stamp in stamps):
            yield IdentityProblem(
                f"the cluster has another bookie {wanted.bookie_id}",
                f"give this one an id of its own; if the other is permanently lost: {FORMAT}",
            )
        else:
            yield IdentityProblem(
                "the directories belong to different lives of this bookie",
                f"mount those that belong together; if they are permanently lost: {FORMAT}",
            )
        return
    if found.incarnation not in (None, stamps[0].incarnation):
        yield IdentityProblem(
            "the bookie was formatted after it used these directories",
            f"mount the newer ones; if they are permanently lost: {FORMAT}",
            found.directories[0].path,
        )
        return
    if _has_begun_write_off(found):
        yield IdentityProblem(f"`{WRITE_OFF}` was cut short", f"{WRITE_OFF}, once more")
        return
    yield from _lost_directories(found, wanted)
    yield from _directories_behind(found)
    yield from _disagreements(found, wanted)


def _is_cut_short(found: FoundStamps) -> bool:
    """Returns whether a join was interrupted: some stamps are not MEMBER, and our node lacks their
    incarnation."""
    return found.incarnation != found.stamps[0].incarnation and any(
        stamp.state is not MembershipState.MEMBER for stamp in found.stamps
    )


def _has_begun_write_off(found: FoundStamps) -> bool:
    return any(stamp.state is MembershipState.WRITING_OFF for stamp in found.stamps)


def _strangers(
    found: FoundStamps, wanted: Cookie
) -> Iterator[tuple[IdentityProblem, StampedDirectory]]:
    """Yields each directory that lacks this bookie's stamp for its place, with the problem."""
    for each in found.directories:
        if problem := _strangeness(each, wanted):
            yield problem, each


def _strangeness(each: StampedDirectory, wanted: Cookie) -> IdentityProblem | None:
    match each.condition:
        case DirectoryCondition.FOREIGN:
            return IdentityProblem(
                "it holds files that do not belong to a bookie", "name an empty one", each.path
            )
        case DirectoryCondition.UNSTAMPED:
            return IdentityProblem(f"its {STAMP} is missing", REJOIN, each.path)
        case DirectoryCondition.DAMAGED:
            return IdentityProblem(f"its {STAMP} is damaged", REJOIN, each.path)
    if each.stamp is None:
        return None
    theirs = each.stamp.cookie
    if theirs.bookie_id != wanted.bookie_id:
        return IdentityProblem(
            f"it belongs to bookie {theirs.bookie_id}, not to {wanted.bookie_id}",
            f"name another directory, or start it with --bookie-id {theirs.bookie_id}",
            each.path,
        )
    if theirs.instance_id not in (None, wanted.instance_id):
        return IdentityProblem(
            f"it belongs to cluster {theirs.instance_id}, "
            f"this is {wanted.instance_id or 'one without an id'}",
            "check the metadata URL",
            each.path,
            is_wrong_cluster=True,
        )
    if each.stamp.place != each.place:
        return IdentityProblem(
            f"it is this bookie's directory `{each.stamp.place}`, but is named as `{each.place}`",
            "name the directories in the order in which the bookie got them",
            each.path,
        )
    return None


def _lost_directories(found: FoundStamps, wanted: Cookie) -> Iterator[IdentityProblem]:
    for each in found.directories:
        if _is_lost(each, found):
            yield IdentityProblem(
                f"the bookie's directory `{each.place}` is empty or missing",
                f"mount its disk; if that is permanently lost: {WRITE_OFF}",
                each.path,
            )
        elif each.condition is DirectoryCondition.EMPTY:
            yield IdentityProblem("it is new to this bookie", REJOIN, each.path)
    known = _ledger_dirs_known(found.stamps)
    if len(wanted.ledger_dirs) < known:
        yield IdentityProblem(
            f"the bookie has {known} ledger directories, but {len(wanted.ledger_dirs)} are named",
            "name all of them, in the order in which the bookie got them",
        )


def _directories_behind(found: FoundStamps) -> Iterator[IdentityProblem]:
    remedy = f"mount the newer one; if that is permanently lost: {WRITE_OFF}"
    for each in found.directories:
        stamp = each.stamp
        if stamp is None or found.incarnation is None:
            continue
        if stamp.start < found.start:
            what = (
                f"its state is that of start {stamp.start} of this bookie, "
                f"but start {found.start} came later and used another copy of it"
            )
            yield IdentityProblem(what, remedy, each.path)
        elif stamp.start == found.start and stamp.starter != found.starter:
            what = f"start {found.start} of this bookie used another copy of it"
            yield IdentityProblem(what, remedy, each.path)


def _is_lost(each: StampedDirectory, found: FoundStamps) -> bool:
    """Returns whether the directory is empty although it should hold files."""
    is_new = each.place.kind == "ledger" and each.place.number >= _ledger_dirs_known(found.stamps)
    return each.condition is DirectoryCondition.EMPTY and not is_new


def _ledger_dirs_known(stamps: Sequence[Stamp]) -> int:
    return max(len(stamp.cookie.ledger_dirs) for stamp in stamps)


def _disagreements(found: FoundStamps, wanted: Cookie) -> Iterator[IdentityProblem]:
    if not found.has_cookie or found.incarnation is None:
        yield IdentityProblem(
            f"the cluster has no bookie {wanted.bookie_id}: it was removed",
            f"to bring it back with all its entries: {REJOIN}",
        )
    elif found.cookie != wanted:
        yield IdentityProblem(
            f"its cookie in the metadata store {_difference(found.cookie, wanted)}", REJOIN
        )
    for each in found.directories:
        if each.stamp and each.stamp.cookie != wanted:
            what = _difference(each.stamp.cookie, wanted)
            yield IdentityProblem(f"its {STAMP} {what}", REJOIN, each.path)


def _difference(cookie: Cookie | None, wanted: Cookie) -> str:
    if cookie is None:
        return "cannot be read"
    if cookie.instance_id != wanted.instance_id:
        return "is older than the id of the cluster"
    return "names other directories"


# --- Allowed repairs --------------------------------------------------------------------------


def why_not_to_erase(found: FoundStamps, wanted: Cookie) -> IdentityProblem | None:
    """Returns why the directories must not be formatted, because they could hold another bookie's
    entries; None if they may be formatted."""
    for problem, directory in _strangers(found, wanted):
        if directory.condition not in (DirectoryCondition.UNSTAMPED, DirectoryCondition.DAMAGED):
            return problem
    return None


def can_rejoin(found: FoundStamps, wanted: Cookie) -> bool:
    """Returns whether everything that the bookie's latest life needs is present. The cookie and the
    stamps may differ from it."""
    return (
        _are_of_one_life(found, wanted)
        and not _has_begun_write_off(found)
        and not any(_is_lost(each, found) for each in found.directories)
        and not any(_directories_behind(found))
        and len(wanted.ledger_dirs) >= _ledger_dirs_known(found.stamps)
    )


def can_write_off(found: FoundStamps, wanted: Cookie) -> bool:
    """Returns whether the directories that are present belong to the bookie's latest life, so that
    the bookie may go on with them alone if the rest is permanently lost. Whether they are enough
    for a store is known only when the store is opened.

    The rest may be a directory, or data that was written after a directory was copied.
    """
    return _are_of_one_life(found, wanted) and found.incarnation is not None


def _are_of_one_life(found: FoundStamps, wanted: Cookie) -> bool:
    stamps = found.stamps
    return (
        why_not_to_erase(found, wanted) is None
        and len({stamp.incarnation for stamp in stamps}) == 1
        and found.incarnation in (None, stamps[0].incarnation)
        and not _is_cut_short(found)
    )


def may_have_held(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Returns whether recovery may ask the bookie for entries to find the ledger's end.

    The end of a closed ledger is known, so no negative answer can change the end.
    """
    return metadata.state is not LedgerState.CLOSED and any(
        bookie_id in fragment.ensemble for fragment in metadata.fragments
    )

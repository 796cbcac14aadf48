"""Decides whether a bookie may start, from stamps and nodes in every combination."""

from dataclasses import replace
from itertools import product

import google_crc32c
import pytest

from rollbook.bookie.core.identity import (
    STAMP,
    DirectoryCondition,
    DirectoryId,
    FoundStamps,
    MembershipState,
    Stamp,
    StampedDirectory,
    StartDecision,
    can_rejoin,
    can_write_off,
    condition_of,
    diagnose,
    may_have_held,
    pack_stamp,
    places_of,
    unpack_stamp,
    why_not_to_erase,
)
from rollbook.bookie.core.suggested_commands import FORMAT, REJOIN, WRITE_OFF
from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.cookie import Cookie, unpack_cookie
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.messages import raises_message

B1, B2 = BookieId("bk-1"), BookieId("bk-2")
CLUSTER, OTHER_CLUSTER = "c1" * 16, "c2" * 16
NOW, BEFORE = "aa" * 16, "bb" * 16
WANTED = Cookie(B1, ("/j",), ("/l1", "/l2"), (), CLUSTER)
MEMBER = Stamp(WANTED, NOW, DirectoryId("journal", 0), MembershipState.MEMBER)


def stamped(
    *,
    cookie: Cookie = WANTED,
    incarnation: str = NOW,
    state: MembershipState = MembershipState.MEMBER,
    starts: tuple[int, int, int] = (0, 0, 0),
) -> list[StampedDirectory]:
    return [
        StampedDirectory(
            path, place, DirectoryCondition.STAMPED, Stamp(cookie, incarnation, place, state, start)
        )
        for (place, path), start in zip(places_of(WANTED), starts, strict=True)
    ]


def without(
    directories: list[StampedDirectory], number: int, condition: DirectoryCondition
) -> list[StampedDirectory]:
    changed = replace(directories[number], condition=condition, stamp=None)
    return [*directories[:number], changed, *directories[number + 1 :]]


def found(
    directories: list[StampedDirectory],
    cookie: Cookie | None = WANTED,
    incarnation: str | None = NOW,
    start: int = 0,
) -> FoundStamps:
    return FoundStamps(tuple(directories), cookie, cookie is not None, incarnation, start)


EMPTY = [
    StampedDirectory(path, place, DirectoryCondition.EMPTY) for place, path in places_of(WANTED)
]


# --- Stamps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", MembershipState)
def test_stamp_is_unpacked_as_packed(state: MembershipState) -> None:
    stamp = replace(MEMBER, state=state, place=DirectoryId("ledger", 12), start=17)
    for each in (stamp, replace(stamp, starter="9b1d")):
        assert unpack_stamp(pack_stamp(each)) == each


def test_stamp_can_be_read_as_a_cookie() -> None:
    assert unpack_cookie(pack_stamp(MEMBER)) == WANTED


def test_every_flipped_bit_and_truncation_of_a_stamp_is_detected() -> None:
    data = pack_stamp(MEMBER)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BadMetadata):
                unpack_stamp(bytes(damaged))
        with pytest.raises(BadMetadata):
            unpack_stamp(data[:position])
    with pytest.raises(BadMetadata):
        unpack_stamp(data + b"\n")


def test_stamp_of_a_later_version_is_refused() -> None:
    data = pack_stamp(MEMBER).replace(b"stamp 1\n", b"stamp 2\n# rollbook more\n")
    text = data[: data.index(b"# rollbook crc32c")]
    with raises_message(UnsupportedVersion):
        unpack_stamp(text + b"# rollbook crc32c %08x\n" % google_crc32c.value(text))


def test_condition_of_a_directory_without_a_stamp() -> None:
    assert condition_of([]) is DirectoryCondition.EMPTY
    assert condition_of(["lost+found", "lock", f"{STAMP}.new"]) is DirectoryCondition.EMPTY
    stored = ["0000000000000007.journal", "0000000000000003.log", "catalog-0000000001.a"]
    assert condition_of(["lock", *stored]) is DirectoryCondition.UNSTAMPED
    assert condition_of(["lock", *stored, "notes.txt"]) is DirectoryCondition.FOREIGN
    # The directory of a Java bookie.
    assert condition_of(["current"]) is DirectoryCondition.FOREIGN


# --- May it serve? ----------------------------------------------------------------------------


def test_empty_directories_without_nodes_are_a_new_bookie() -> None:
    assert diagnose(found(EMPTY, None, None), WANTED).standing is StartDecision.NEW


def test_matching_stamps_are_a_member() -> None:
    diagnosis = diagnose(found(stamped()), WANTED)
    assert (diagnosis.standing, diagnosis.incarnation) == (StartDecision.MEMBER, NOW)


def test_unfinished_creation_is_new_or_joined() -> None:
    half = without(stamped(state=MembershipState.JOINING), 2, DirectoryCondition.EMPTY)
    assert diagnose(found(half, None, None), WANTED).standing is StartDecision.NEW
    whole = stamped(state=MembershipState.JOINING)
    assert diagnose(found(whole, None, None), WANTED).standing is StartDecision.NEW
    assert diagnose(found(whole), WANTED).standing is StartDecision.JOINED
    partly = [*whole[:1], *stamped()[1:]]
    assert diagnose(found(partly), WANTED).standing is StartDecision.JOINED


REFUSED = {
    "wiped": (found(EMPTY), "all its directories are empty", FORMAT),
    "wiped, and its cookie removed": (found(EMPTY, None), "are empty", FORMAT),
    "one wiped": (
        found(without(stamped(), 1, DirectoryCondition.EMPTY)),
        "`ledger 0` is empty",
        WRITE_OFF,
    ),
    "journal wiped": (
        found(without(stamped(), 0, DirectoryCondition.EMPTY)),
        "`journal 0` is empty",
        WRITE_OFF,
    ),
    "stamp lost": (
        found(without(stamped(), 1, DirectoryCondition.UNSTAMPED)),
        "is missing",
        REJOIN,
    ),
    "stamp damaged": (
        found(without(stamped(), 2, DirectoryCondition.DAMAGED)),
        "is damaged",
        REJOIN,
    ),
    "foreign files": (
        found(without(EMPTY, 0, DirectoryCondition.FOREIGN), None, None),
        "do not belong to a bookie",
        "empty one",
    ),
    "another bookie's": (
        found(stamped(cookie=replace(WANTED, bookie_id=B2))),
        "belongs to bookie bk-2",
        "--bookie-id bk-2",
    ),
    "another cluster's": (
        found(stamped(cookie=replace(WANTED, instance_id=OTHER_CLUSTER))),
        f"belongs to cluster {OTHER_CLUSTER}",
        "metadata URL",
    ),
    "swapped": (
        found(
            [
                stamped()[0],
                replace(stamped()[1], stamp=stamped()[2].stamp),
                replace(stamped()[2], stamp=stamped()[1].stamp),
            ]
        ),
        "is this bookie's directory `ledger 1`",
        "in the order",
    ),
    "formatted since": (found(stamped(incarnation=BEFORE)), "was formatted after", FORMAT),
    "one of an earlier life": (
        found([*stamped()[:2], *stamped(incarnation=BEFORE)[2:]]),
        "different lives",
        FORMAT,
    ),
    "cookie removed": (found(stamped(), None), "it was removed", REJOIN),
    "our record removed": (found(stamped(), WANTED, None), "it was removed", REJOIN),
    "both removed": (found(stamped(), None, None), "it was removed", REJOIN),
    "moved": (
        found(stamped(cookie=replace(WANTED, journal_dirs=("/old",)))),
        "VERSION names other directories",
        REJOIN,
    ),
    "older than the id of the cluster": (
        found(stamped(cookie=replace(WANTED, instance_id=None))),
        "older than the id",
        REJOIN,
    ),
    "cookie of other directories": (
        found(stamped(), replace(WANTED, ledger_dirs=("/l1",))),
        "names other directories",
        REJOIN,
    ),
    "format cut short": (
        found(stamped(state=MembershipState.FORMATTING, incarnation=NOW), WANTED, BEFORE),
        "was cut short",
        FORMAT,
    ),
    "format cut short while it began": (
        found(
            [*stamped(state=MembershipState.FORMATTING)[:1], *stamped(incarnation=BEFORE)[1:]],
            WANTED,
            BEFORE,
        ),
        "was cut short",
        FORMAT,
    ),
    "format cut short, nodes removed": (
        found(stamped(state=MembershipState.FORMATTING), None, None),
        "was cut short",
        FORMAT,
    ),
    "write-off cut short": (
        found([*stamped(state=MembershipState.WRITING_OFF)[:2], *stamped()[2:]]),
        "was cut short",
        WRITE_OFF,
    ),
    "another of its name was first": (
        found(stamped(state=MembershipState.JOINING), WANTED, BEFORE),
        "another bookie bk-1",
        "an id of its own",
    ),
    "a bookie in Java has its name": (
        found(stamped(state=MembershipState.JOINING), WANTED, None),
        "another bookie bk-1",
        "an id of its own",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_names_the_problem_and_its_remedy(case: str) -> None:
    """B8."""
    what, message, remedy = REFUSED[case]
    diagnosis = diagnose(what, WANTED)
    assert diagnosis.standing is StartDecision.REFUSED
    assert message in diagnosis.problems[0].what
    assert remedy in diagnosis.problems[0].remedy


def test_missing_ledger_directory_is_refused() -> None:
    fewer = replace(WANTED, ledger_dirs=("/l1",))
    some = [each for each in stamped() if each.path != "/l2"]
    diagnosis = diagnose(found(some), fewer)
    assert "has 2 ledger directories, but 1 are named" in diagnosis.problems[0].what
    assert not can_rejoin(found(some), fewer)


def test_additional_empty_directory_can_rejoin() -> None:
    more = replace(WANTED, ledger_dirs=(*WANTED.ledger_dirs, "/l3"))
    some = [*stamped(), StampedDirectory("/l3", DirectoryId("ledger", 2), DirectoryCondition.EMPTY)]
    assert "is new" in diagnose(found(some), more).problems[0].what
    assert can_rejoin(found(some), more)


@pytest.mark.parametrize("starts", list(product((4, 5, 6), repeat=3)))
def test_directories_serve_only_if_none_is_behind_the_latest_start(
    starts: tuple[int, int, int],
) -> None:
    """B8: a start writes its stamps before its node, so an interrupted one leaves some stamps ahead."""
    what = found(stamped(starts=starts), start=5)
    is_behind = min(starts) < 5
    diagnosis = diagnose(what, WANTED)
    assert (diagnosis.standing is StartDecision.REFUSED) == is_behind
    assert can_rejoin(what, WANTED) == (not is_behind)
    assert can_write_off(what, WANTED)
    assert what.next_start > max(5, *starts)
    for problem in diagnosis.problems:
        behind = [each.path for each in what.directories if each.stamp and each.stamp.start < 5]
        assert problem.path in behind
        assert WRITE_OFF in problem.remedy


def test_copy_with_same_start_but_another_starter_is_refused() -> None:
    """B8: of two copies that start at once, only one writes its token to the node."""
    ours = replace(MEMBER, start=5, starter="aa")
    directories = [replace(each, stamp=replace(ours, place=each.place)) for each in stamped()]
    is_ours = replace(found(directories, start=5), starter="aa")
    assert diagnose(is_ours, WANTED).standing is StartDecision.MEMBER
    is_theirs = replace(is_ours, starter="bb")
    assert [problem.path for problem in diagnose(is_theirs, WANTED).problems] == [
        "/j",
        "/l1",
        "/l2",
    ]
    assert not can_rejoin(is_theirs, WANTED)
    assert can_write_off(is_theirs, WANTED)
    assert diagnose(replace(is_theirs, start=4), WANTED).standing is StartDecision.MEMBER


CHOICES = (
    StampedDirectory("", DirectoryId("", 0), DirectoryCondition.EMPTY),
    StampedDirectory("", DirectoryId("", 0), DirectoryCondition.DAMAGED),
    StampedDirectory("", DirectoryId("", 0), DirectoryCondition.UNSTAMPED),
    *(
        StampedDirectory(
            "",
            DirectoryId("", 0),
            DirectoryCondition.STAMPED,
            Stamp(WANTED, life, DirectoryId("", 0), state),
        )
        for life in (NOW, BEFORE)
        for state in MembershipState
    ),
)


def test_no_incomplete_mixture_of_stamps_serves() -> None:
    """B8: checked for every state of three directories and of the nodes."""
    served = 0
    for row in product(CHOICES, repeat=3):
        directories = [
            replace(
                choice,
                path=path,
                place=place,
                stamp=choice.stamp and replace(choice.stamp, place=place),
            )
            for choice, (place, path) in zip(row, places_of(WANTED), strict=True)
        ]
        for cookie, incarnation in product((None, WANTED), (None, NOW, BEFORE)):
            what = found(directories, cookie, incarnation)
            diagnosis = diagnose(what, WANTED)
            lives = {stamp.incarnation for stamp in what.stamps}
            states = {stamp.state for stamp in what.stamps}
            match diagnosis.standing:
                case StartDecision.MEMBER | StartDecision.JOINED:
                    served += 1
                    assert len(what.stamps) == 3
                    assert lives == {incarnation} == {diagnosis.incarnation}
                    assert cookie == WANTED
                    assert (diagnosis.standing is StartDecision.MEMBER) == (
                        states == {MembershipState.MEMBER}
                    )
                case StartDecision.NEW:
                    assert not what.was_used
                    assert states <= {MembershipState.JOINING}
                    assert {each.condition for each in directories} <= {
                        DirectoryCondition.EMPTY,
                        DirectoryCondition.STAMPED,
                    }
                case StartDecision.REFUSED:
                    assert diagnosis.problems
                    assert all(problem.remedy for problem in diagnosis.problems)
            if can_rejoin(what, WANTED):
                assert len(lives) == 1
                assert lives <= {incarnation or NOW, incarnation or BEFORE}
                assert DirectoryCondition.EMPTY not in {each.condition for each in directories}
                assert incarnation is not None or states == {MembershipState.MEMBER}
                assert MembershipState.WRITING_OFF not in states
            if can_write_off(what, WANTED):
                assert lives == {incarnation}
    assert served == 2 * 3**3  # Two states of each of three directories, in two lives.


# --- What may be repaired -----------------------------------------------------------------------


def test_another_bookies_directories_are_never_erased() -> None:
    for cookie in (replace(WANTED, bookie_id=B2), replace(WANTED, instance_id=OTHER_CLUSTER)):
        assert why_not_to_erase(found(stamped(cookie=cookie)), WANTED)
    assert why_not_to_erase(found(without(stamped(), 1, DirectoryCondition.FOREIGN)), WANTED)
    for condition in (
        DirectoryCondition.EMPTY,
        DirectoryCondition.DAMAGED,
        DirectoryCondition.UNSTAMPED,
    ):
        assert why_not_to_erase(found(without(stamped(), 1, condition)), WANTED) is None
    assert why_not_to_erase(found(stamped(incarnation=BEFORE)), WANTED) is None


@pytest.mark.parametrize("state", LedgerState)
def test_formatted_bookie_may_have_held_its_unclosed_ledgers(state: LedgerState) -> None:
    """B8: unclosed ledgers with this bookie in any fragment; a recovery may have to find their end."""

    def ledger(*ensembles: tuple[BookieId, ...]) -> LedgerMetadata:
        fragments = [Fragment(EntryId(10 * n), each) for n, each in enumerate(ensembles)]
        last = EntryId(99) if state is LedgerState.CLOSED else None
        return LedgerMetadata(
            LedgerId(7),
            Quorum(1, 1, 1),
            tuple(fragments),
            digest_type=DigestType.CRC32C,
            password=b"",
            created_ms=0,
            state=state,
            last_entry=last,
            length=1 if last is not None else None,
        )

    is_open = state is not LedgerState.CLOSED
    assert may_have_held(ledger((B1,)), B1) == is_open
    assert may_have_held(ledger((B1,), (B2,)), B1) == is_open
    assert not may_have_held(ledger((B2,)), B1)

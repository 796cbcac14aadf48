"""Random histories for metadata stores, as data: a seed gives the same plan for ever.

Plans have few paths and few versions, so that calls conflict: parents that are missing or ephemeral,
names that a sequential create would take, outdated versions, expired sessions.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.ports import Check, Create, CreateMode, Delete, Op, Set

CLIENTS: Final = 3
STEPS: Final = (20, 40)  # The smallest and the largest number of steps.

_PLAIN: Final = ("/", "/a", "/b", "/a/x", "/a/y", "/a/x/p", "/b/x")
_NUMBERED: Final = tuple(
    f"{parent}/s-{number:010d}" for parent in ("", "/a", "/a/x") for number in range(3)
)
_PREFIXES: Final = ("/s-", "/a/s-", "/a/s-", "/a/x/s-")
_PARENTS: Final = ("/", "/a", "/a/x")
_BAD_PATHS: Final = ("", "a", "/a/", "//", "/a//x", "/a/.", "/../a", "/a/\0", "/é")
_BAD_VERSIONS: Final = (-1, 2**31)
_VALUE_BYTES: Final = (0, 1, 7, 300)
_BIG_VALUE_BYTES: Final = (990_000, 1_100_000)  # Below and above the limit of a request.


class Fault(Enum):
    """What happens to a client's connection around one of its calls."""

    LOSE_REQUEST = "the request never arrives"
    LOSE_REPLY = "the request is served, the answer is lost"
    CUT = "the call is made while the connection is down"
    EXPIRE = "the call is made while the connection is down, then the session ends"


@dataclass(frozen=True, slots=True)
class Get:
    path: str


@dataclass(frozen=True, slots=True)
class Children:
    path: str


@dataclass(frozen=True, slots=True)
class Apply:
    """One operation, called by the method of its name."""

    op: Create | Set | Delete


@dataclass(frozen=True, slots=True)
class Transact:
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """Starts a watch; faults end it."""

    path: str
    recursive: bool


@dataclass(frozen=True, slots=True)
class Drain:
    """The events of the client's watches since the last call."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """Closes the session cleanly; the client opens another one."""


Call = Get | Children | Apply | Transact | Sync | Watch | Drain | Reopen


@dataclass(frozen=True, slots=True)
class Step:
    client: int
    call: Call
    fault: Fault | None = None

    def __str__(self) -> str:
        fault = f"  [{self.fault.value}]" if self.fault else ""
        return f"client {self.client}: {_in_words(self.call)}{fault}"


Plan = tuple[Step, ...]


def _in_words(call: Call) -> str:
    match call:
        case Apply(op):
            return _op_in_words(op)
        case Transact(ops):
            return f"transaction({', '.join(map(_op_in_words, ops))})"
        case Watch(path, recursive):
            return f"watch {path} {'and all below' if recursive else 'and its children'}"
        case Get(path) | Children(path):
            return f"{type(call).__name__.lower()} {path}"
        case _:
            return type(call).__name__.lower()


def _op_in_words(op: Op) -> str:
    match op:
        case Create(path, value, mode):
            return f"create {path} {mode.name.lower()} with {len(value)} bytes"
        case Set(path, value, version):
            return f"set {path} of version {version} to {len(value)} bytes"
        case Delete(path, version) | Check(path, version):
            return f"{type(op).__name__.lower()} {path} of version {version}"


def make_plan(seed: int) -> Plan:
    chance = random.Random(seed)
    opening = [
        *(Step(0, Apply(Create(path))) for path in ("/a", "/a/x") if chance.random() < 0.7),
        *(Step(chance.randrange(CLIENTS), _watch(chance)) for _ in range(chance.randrange(3))),
    ]
    return (*opening, *(_step(chance) for _ in range(chance.randint(*STEPS))))


def _step(chance: random.Random) -> Step:
    call = _call(chance)
    can_fail = isinstance(call, Get | Children | Apply) or (
        isinstance(call, Transact) and bool(call.ops)
    )
    fault = chance.choice(list(Fault)) if can_fail and chance.random() < 0.07 else None
    return Step(chance.randrange(CLIENTS), call, fault)


def _call(chance: random.Random) -> Call:
    kind = chance.choices(
        ("apply", "transact", "get", "children", "watch", "drain", "reopen", "sync"),
        (58, 12, 7, 6, 3, 11, 2, 1),
    )[0]
    match kind:
        case "apply":
            op = _op(chance, (40, 25, 25, 0))
            assert not isinstance(op, Check)
            return Apply(op)
        case "transact":
            count = chance.choice((0, 1, 2, 2, 3, 3, 4))
            return Transact(tuple(_op(chance, (40, 25, 20, 15)) for _ in range(count)))
        case "get":
            return Get(_path(chance))
        case "children":
            return Children(_path(chance))
        case "watch":
            return _watch(chance)
        case "drain":
            return Drain()
        case "reopen":
            return Reopen()
        case _:
            return Sync()


def _watch(chance: random.Random) -> Watch:
    path = chance.choice(_PARENTS) if chance.random() < 0.7 else _path(chance)
    return Watch(path, chance.random() < 0.4)


def _op(chance: random.Random, weights: tuple[int, int, int, int]) -> Op:
    match chance.choices(("create", "set", "delete", "check"), weights)[0]:
        case "create":
            mode = chance.choices(list(CreateMode), (50, 20, 15, 15))[0]
            path = chance.choice(_PREFIXES) if mode.is_sequential else _path(chance)
            return Create(path, _value(chance), mode)
        case "set":
            return Set(_path(chance), _value(chance), _version(chance))
        case "delete":
            # The root of a plan is an ordinary node of the store; it has to stay.
            path = _path(chance)
            return Delete(path if path != "/" else "/a", _version(chance))
        case _:
            return Check(_path(chance), _version(chance))


def _path(chance: random.Random) -> str:
    if chance.random() < 0.02:
        return chance.choice(_BAD_PATHS)
    return chance.choice(_PLAIN if chance.random() < 0.75 else _NUMBERED)


def _version(chance: random.Random) -> int | None:
    if chance.random() < 0.01:
        return chance.choice(_BAD_VERSIONS)
    return chance.choices((None, 0, 1, 2, 3), (50, 25, 12, 8, 5))[0]


def _value(chance: random.Random) -> bytes:
    sizes = _BIG_VALUE_BYTES if chance.random() < 0.002 else _VALUE_BYTES
    return chance.choice((b"x", b"y")) * chance.choice(sizes)

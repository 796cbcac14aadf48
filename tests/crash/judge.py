"""Judges whether the responses that clients of a metadata store got can be true.

Clients print a line before they send an operation and after they learn its outcome. The judge is in
another process, so lines it received survive the clients. At the end it compares the contents of
the store with its promises:

- *Paths* are each used by one client, one operation after another. For each path the judge keeps
  the set of states that are possible: an acknowledged operation happened, a refused one did not, an
  unknown one may have. A read must return a possible state, and so must the store at the end.
- *Counters* are shared. A step writes the counter by compare-and-set and its token under
  `LOG/COUNTER/N` in one transaction, so the log has the token of each step: it has no gap, ends at
  the counter's value, has every acknowledged step and no refused one, and agrees with every value
  that a client ever saw. So values that were seen but never written are found too.
- *Numbers* are sequential nodes, most of which are deleted: no name is given twice, and the next
  name is never taken.

Lines are JSON arrays:
    ["try", OP, KIND, …]     create PATH VALUE · set PATH VALUE VERSION · delete PATH VERSION ·
                             get PATH · number PREFIX VALUE · step COUNTER N TOKEN
    ["ok", OP, RESULT]       of get: [VALUE, VERSION] or null; of number: the path
    ["refused", OP, REASON]  not applied; REASON is the name of the error
    ["unknown", OP]
    ["saw", COUNTER, N, TOKEN]
    ["bad", TEXT]            the client itself saw a broken promise
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

COUNTERS: Final = "/counters"
LOG: Final = "/log"
NUMBERS: Final = "/numbers"

State = tuple[str, int] | None
"""A node's value and version, or None if there is no node."""

_NEVER_MADE: Final[frozenset[State]] = frozenset([None])


class Judge:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.outcomes: Counter[str] = Counter()
        # Pending operations, by client and operation.
        self._open: dict[tuple[str, int], list[Any]] = {}
        self._possible: dict[str, frozenset[State]] = {}
        self._given: dict[str, str] = {}  # Values of numbers, by path.
        self._last_given: dict[str, str] = {}  # Last path given to each client.
        self._perhaps_given: set[str] = set()  # Values of numbers with an unknown outcome.
        # Tokens of acknowledged or seen steps, by counter and number.
        self._steps: dict[tuple[str, int], str] = {}
        self._refused_tokens: set[str] = set()

    # --- While it runs --------------------------------------------------------------------------

    def on_line(self, client: str, line: str) -> None:
        match json.loads(line):
            case ["try", int(op), *attempt]:
                self._open[client, op] = attempt
            case ["ok", int(op), result]:
                self.outcomes["acknowledged"] += 1
                self._on_success(client, self._open.pop((client, op)), result)
            case ["refused", int(op), str(reason)]:
                self.outcomes["refused"] += 1
                self._on_refusal(client, self._open.pop((client, op)), reason)
            case ["unknown", int(op)]:
                self.outcomes["unknown"] += 1
                self._on_unknown(self._open.pop((client, op)))
            case ["saw", str(counter), int(n), str(token)]:
                self._note_step(client, counter, n, token)
            case ["bad", str(text)]:
                self.violations.append(f"{client}: {text}")
            case other:
                raise ValueError(f"{client} said {other!r}")

    def _on_success(self, client: str, attempt: list[Any], result: Any) -> None:
        match attempt:
            case ["number", _, str(value)]:
                self._on_number(client, result, value)
            case ["step", counter, n, token]:
                self._note_step(client, counter, n, token)
            case ["get", path]:
                state = None if result is None else (result[0], result[1])
                self._narrow(client, attempt, {s for s in self._states(path) if s == state})
            case [_, path, *_]:
                after = [_applied(attempt, state) for state in self._states(path)]
                self._narrow(client, attempt, {state for did, state in after if did})

    def _on_refusal(self, client: str, attempt: list[Any], reason: str) -> None:
        match attempt:
            case ["number", prefix, _] if reason == "NodeExists":
                self.violations.append(f"{client}: the next name of {prefix} was taken already")
            case ["number", _, token] | ["step", _, _, token]:
                self._refused_tokens.add(token)
            case [_, path, *_]:
                states = set(self._states(path))
                if reason == "NodeExists":
                    states = {state for state in states if state is not None}
                elif reason == "NoSuchNode":
                    states = {state for state in states if state is None}
                elif reason == "MetadataConflict":
                    states = {state for state in states if state and state[1] != attempt[-1]}
                self._narrow(client, attempt, states)

    def _on_unknown(self, attempt: list[Any]) -> None:
        match attempt:
            case ["number", _, str(value)]:
                self._perhaps_given.add(value)
            case ["create" | "set" | "delete", path, *_]:
                states = self._states(path)
                self._possible[path] = states | {_applied(attempt, state)[1] for state in states}

    def _states(self, path: str) -> frozenset[State]:
        return self._possible.get(path, _NEVER_MADE)

    def _narrow(self, client: str, attempt: list[Any], states: set[State]) -> None:
        if not states:
            possible = sorted(map(str, self._states(attempt[1])))
            self.violations.append(
                f"{client}: {attempt} cannot be, with {attempt[1]} in {possible}"
            )
        self._possible[attempt[1]] = frozenset(states) or self._states(attempt[1])

    def _on_number(self, client: str, path: str, value: str) -> None:
        if path in self._given:
            self.violations.append(f"{path} was given twice: {self._given[path]} and {value}")
        if path <= self._last_given.get(client, ""):
            self.violations.append(f"{path} was given to {client} after {self._last_given[client]}")
        self._given[path], self._last_given[client] = value, path
        self._possible[path] = frozenset([(value, 0)])

    def _note_step(self, client: str, counter: str, n: int, token: str) -> None:
        known = self._steps.setdefault((counter, n), token)
        if known != token:
            self.violations.append(
                f"{client}: step {n} of {counter} was made by {token} and by {known}"
            )

    # --- At the end -----------------------------------------------------------------------------

    def verdict(self, store: Mapping[str, tuple[str, int]]) -> list[str]:
        """Returns all violations, given all nodes with their values and versions."""
        for attempt in self._open.values():  # The client died, or got no response in time.
            self.outcomes["unknown"] += 1
            self._on_unknown(attempt)
        self._open.clear()
        self._judge_paths(store)
        self._judge_numbers(store)
        self._judge_counters(store)
        return self.violations

    def _judge_paths(self, store: Mapping[str, tuple[str, int]]) -> None:
        for path, states in self._possible.items():
            if store.get(path) not in states:
                possible = sorted(map(str, states))
                self.violations.append(f"{path} is {store.get(path)}, not one of {possible}")

    def _judge_numbers(self, store: Mapping[str, tuple[str, int]]) -> None:
        perhaps = Counter(self._perhaps_given)
        for path, (value, _) in store.items():
            if path.startswith(f"{NUMBERS}/") and path not in self._given:
                perhaps[value] -= 1
                if perhaps[value] < 0:
                    self.violations.append(f"{path} holds {value}, which nobody asked for")

    def _judge_counters(self, store: Mapping[str, tuple[str, int]]) -> None:
        log: dict[str, dict[int, str]] = {}
        for path, (token, _) in store.items():
            if path.startswith(f"{LOG}/") and path.count("/") == 3:
                _, _, counter, number = path.split("/")
                log.setdefault(counter, {})[int(number)] = token
        for (counter, n), token in self._steps.items():
            found = log.get(counter, {}).get(n)
            if found != token:
                self.violations.append(f"step {n} of {counter} is {found}, but was {token}")
        for counter, steps in log.items():
            value, version = store.get(f"{COUNTERS}/{counter}", ("gone", -1))
            last = max(steps)
            if sorted(steps) != list(range(1, last + 1)):
                self.violations.append(f"the log of {counter} has a gap before {last}")
            if value != f"{last} {steps[last]}" or version != last:
                self.violations.append(f"{counter} is {value!r}, its log ends with {last}")
            for n, token in steps.items():
                if token in self._refused_tokens:
                    self.violations.append(f"step {n} of {counter} is {token}, which was refused")


def _applied(attempt: list[Any], state: State) -> tuple[bool, State]:
    """Whether the operation can succeed on this state, and the state after it."""
    match attempt:
        case ["create", _, value]:
            return (True, (value, 0)) if state is None else (False, state)
        case ["set", _, value, version] if state is not None and state[1] == version:
            return True, (value, version + 1)
        case ["delete", _, version] if state is not None and state[1] == version:
            return True, None
    return False, state

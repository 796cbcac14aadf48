"""Is there an order that explains every response? Linearizability, key by key.

Each operation takes effect at one moment between its call and its return, and returns what was there at
that moment; one without a known outcome takes effect at some moment after its call, or never. The search
is Wing's and Gong's: take any operation next that was called before all others returned; whatever was tried,
as a set of operations and a value, is not tried again (Lowe). Keys are independent, and short-lived.

A write without a known outcome, whose value no client ever saw or compared with, changes nothing that
any client saw, and is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from tests.chaos.kv.history import Op

_SHOWN_MAX = 12


def violations(history: Iterable[Op]) -> list[str]:
    """One violation for each key that no order explains."""
    by_key: dict[str, list[Op]] = defaultdict(list)
    for op in history:
        by_key[op.key].append(op)
    found = []
    for key, ops in sorted(by_key.items()):
        if stuck := unexplained(ops):
            shown = "\n    ".join(map(str, stuck[:_SHOWN_MAX]))
            found.append(
                f"key {key}: no order explains, after all that can be explained:\n    {shown}"
            )
    return found


def unexplained(ops: Sequence[Op]) -> list[Op]:
    """Returns [] if there is an order; otherwise what is left where the search came furthest."""
    ops = _relevant(ops)
    known = sum(1 << index for index, op in enumerate(ops) if op.is_known)
    tried: set[tuple[int, str | None]] = set()
    stack: list[tuple[int, str | None]] = [(0, None)]
    furthest = 0
    while stack:
        done, state = stack.pop()
        if done & known == known:
            return []
        if (done, state) in tried:
            continue
        tried.add((done, state))
        if (done & known).bit_count() > (furthest & known).bit_count():
            furthest = done
        for index in reversed(_next(ops, done)):
            op = ops[index]
            if op.explains(state):
                stack.append((done | 1 << index, op.after(state)))
    return [op for index, op in enumerate(ops) if not furthest >> index & 1]


def _relevant(ops: Sequence[Op]) -> list[Op]:
    """The operations that matter, ordered by their calls."""
    seen = {op.found if op.is_known else op.expect for op in ops}
    return sorted(
        (op for op in ops if op.is_known or (op.do != "get" and op.value in seen)),
        key=lambda op: op.called_ns,
    )


def _next(ops: Sequence[Op], done: int) -> list[int]:
    """The remaining operations that were called before any other remaining one returned."""
    found: list[int] = []
    first = (~done & done + 1).bit_length() - 1  # The first remaining operation.
    first_return = ops[first].returned_ns
    for index in range(first, len(ops)):
        if done >> index & 1:
            continue
        if ops[index].called_ns > first_return:
            break
        found.append(index)
        first_return = min(first_return, ops[index].returned_ns)
    return found

"""Finds the media type that a request prefers by its `Accept` header (RFC 9110, 12.5.1)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

_Q: Final = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


def preferred_type(accept: str, types_in: Mapping[str, Sequence[str]], default: str) -> str | None:
    """Returns the type of highest weight, the first one among equals; None if no acceptable type is offered.

    `types_in`: the offered types in each media range. `default`: the type for an absent or empty header. The narrowest
    range that has a type decides its weight: `application/json;q=0, */*` excludes JSON. A malformed weight counts as 0.
    """
    weights: dict[str, float] = {}
    for each in accept.split(","):
        media_range, _, parameters = each.partition(";")
        if each.strip():  # A list may have empty elements, which are ignored.
            weights.setdefault(media_range.strip().lower(), _weight(parameters))
    if not weights:
        return default

    def weight_of(kind: str) -> float:
        ranges = (kind, kind.partition("/")[0] + "/*", "*/*")
        return next(weights[each] for each in ranges if each in weights)

    offered = [kind for each in weights for kind in types_in.get(each, ())]
    best = max(offered, key=weight_of, default=None)
    return best if best is not None and weight_of(best) else None


def _weight(parameters: str) -> float:
    for each in parameters.split(";"):
        name, _, value = each.partition("=")
        if name.strip().lower() == "q":
            found = _Q.fullmatch(value.strip())
            return float(found[0]) if found else 0.0
    return 1.0

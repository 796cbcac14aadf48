"""Selects the logs of a pipeline by names on the command line, such as `shop/orders` or `shop/*`."""

import re
from collections.abc import Sequence

from rollbook.api.spark.core.options import Selection, source_options, values_of


def selection_of(names: Sequence[str]) -> Selection:
    """Parses `shop/orders`, `orders`, or `shop/*`. Raises `BadConfig`."""
    stars = [name for name in names if name.endswith("*")]
    if not stars:
        given = {"logs": ",".join(names)}
    elif len(names) == 1:
        given = {"prefix": names[0][:-1]}
    else:
        given = {"logPattern": _pattern_of(names)}
    return source_options(values_of({"endpoint": "log://any:1", **given}, {})).selection


def _pattern_of(names: Sequence[str]) -> str:
    """Returns a pattern that matches all names. If they are in one namespace, the pattern begins with it, so that
    only the logs of that namespace are requested.
    """
    wanted: dict[str, list[str]] = {}
    for name in names:
        namespace, _, log = (name if "/" in name else f"default/{name}").partition("/")
        pattern = re.escape(log[:-1]) + ".*" if log.endswith("*") else re.escape(log)
        wanted.setdefault(namespace, []).append(pattern)
    by_namespace = [
        f"{namespace.replace('.', '[.]')}/(?:{'|'.join(logs)})"
        for namespace, logs in wanted.items()
    ]
    return "|".join(by_namespace)

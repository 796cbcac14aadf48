"""The servers and the logs of a pipeline: how to reach the servers, and how names on the command line select logs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.api.spark.core.options import Selection, access_of, source_options, values_of
from rollbook.api.spark.core.stream_offsets import TailPoint
from rollbook.api.spark.shared_client import ServerChannel, channel_of
from rollbook.api.spark.tails import SelectionTails


@dataclass(frozen=True)
class Way:
    """How to reach the servers: `options` are the data source's options for connecting to them."""

    options: Mapping[str, str]

    @property
    def channel(self) -> ServerChannel:
        return channel_of(access_of(values_of(self.options, {})))

    def tails(self, selection: Selection) -> dict[str, TailPoint]:
        view = SelectionTails(self.channel, selection)
        try:
            return view.ask()
        finally:
            view.close()


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

"""How a pipeline reaches the servers, and asks them for the tails of logs."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollbook.api.spark.core.options import Selection, access_of, values_of
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

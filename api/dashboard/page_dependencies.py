"""The objects that pages query and forms change: the cluster, its logs, and this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rollbook.api.access.management_rights import Managing
from rollbook.api.dashboard.core.samples import Samples
from rollbook.api.dashboard.viewer_log_client import LogServers
from rollbook.api.rest.cluster_admin_interface import ClusterAdmin
from rollbook.api.rest.operation_registry import Facts, RunningOperations
from rollbook.proto.runtime.prometheus_text import Metrics


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """The process that serves management and the dashboard."""

    name: str
    settings: Sequence[Mapping[str, str]] = ()
    metrics: Metrics = field(default_factory=Metrics)


_NAMELESS: Final = OwnProcess("this server")


class PageAdmin(ClusterAdmin, Protocol):
    """The methods that pages need in addition to those of the management routes."""

    async def log_servers(self) -> Sequence[Facts]:
        """The registered log servers."""

    async def node(self, path: str) -> Facts:
        """A node of the metadata store; its secrets are not hidden. Raises `NoSuchNode`."""


@dataclass(frozen=True, slots=True)
class PageSources:
    """The arguments of `Dashboard`. `own`: the process that serves the pages."""

    admin: PageAdmin
    managing: Managing
    operations: RunningOperations
    logs: LogServers
    samples: Samples
    own: OwnProcess = _NAMELESS

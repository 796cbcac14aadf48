"""The interface of a cluster that the management routes and the dashboard call (`ClusterAdmin`), and the errors that its
methods raise.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rollbook.api.rest.operation_registry import Facts
from rollbook.proto.errors import MetadataConflict, MetadataUnavailable, OutcomeUnknown
from rollbook.proto.formats.lifecycle import LifecycleState

# Methods that only read raise these.
AWAY: Final = (MetadataUnavailable,)
# Methods that change something raise these.
ACTS: Final = (MetadataUnavailable, OutcomeUnknown, MetadataConflict)


class CallbackAdmin(Protocol):
    """Every method raises `MetadataUnavailable` while the metadata store is unavailable."""

    async def list(self, *, shows_urls: bool) -> Sequence[Facts]: ...

    async def read(self, callback_id: str, *, shows_urls: bool) -> Facts:
        """Raises `Missing`."""

    async def create(
        self, url: str, kinds: Sequence[str], bookie: str | None, principal: str
    ) -> Facts: ...

    async def delete(self, callback_id: str) -> Facts: ...

    async def test(self, callback_id: str) -> Facts: ...

    async def deliveries(self, callback_id: str) -> Facts: ...


class ClusterAdmin(Protocol):
    """A cluster's interface for its operators. All methods raise `MetadataUnavailable` while the metadata store is
    unavailable, except `cluster`.
    """

    @property
    def callbacks(self) -> CallbackAdmin: ...

    async def cluster(self) -> Facts:
        """Facts about the cluster, also while the metadata store is unavailable."""

    async def health(self) -> Facts: ...

    async def bookies(self) -> Sequence[Facts]:
        """All bookies, by id."""

    async def bookie(self, name: str) -> Facts:
        """Raises `Missing`."""

    async def set_lifecycle(
        self, name: str, state: LifecycleState, *, force: bool = False
    ) -> Facts: ...

    async def judge_removal(self, names: Sequence[str]) -> Facts: ...

    async def remove(self, name: str, given_up: int | None) -> Facts: ...

    async def ledgers(
        self,
        after: int,
        limit: int,
        *,
        state: str | None = None,
        bookie: str | None = None,
        short: bool | None = None,
    ) -> tuple[Sequence[Facts], int | None]: ...

    async def ledger(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""

    async def ledger_as_bookkeeper(self, ledger_id: int) -> Facts:
        """The ledger's metadata with BookKeeper's names. Raises `NoSuchLedger`."""

    async def bad_ledgers(self, after: int, limit: int) -> tuple[Sequence[Facts], int | None]: ...

    async def recovery(self) -> Facts: ...

    async def audit(self, *, anyway: bool) -> Facts: ...

    async def set_switch(self, *, enabled: bool) -> None: ...

    async def set_delay(self, seconds: int) -> Facts: ...

    async def set_rate(self, bytes_per_s: int) -> Facts: ...

    async def space(self) -> Mapping[str, tuple[int, int]]:
        """Free and total bytes of each bookie."""

    async def entries(
        self, ledger_id: int, first: int, last: int | None
    ) -> Mapping[int, bytes]: ...

    async def delete_ledger(self, ledger_id: int, *, force: bool) -> Facts:
        """Raises `NoSuchLedger`, `PartOfLog`, `RecoveryIncomplete`."""

    async def cookies(self) -> Sequence[Facts]: ...

    async def cookie(self, name: str) -> Facts:
        """Raises `Missing`."""

    async def put_cookie(self, name: str, text: str, version: int | None) -> Facts: ...

    async def delete_cookie(self, name: str) -> Facts: ...

    async def generate_cookie(
        self, name: str, directories: Mapping[str, Sequence[str]]
    ) -> Facts: ...

    async def ask_pages(self, name: str, method: str, path: str, body: Facts | None) -> Any:
        """The bookie's response. Raises the bookie's error, or `Missing` if the bookie has no admin pages."""

    async def operations(self, after: str, limit: int) -> tuple[Sequence[Facts], str | None]:
        """Operations that are stored in metadata, newest first."""

    async def operation(self, operation_id: str) -> Facts:
        """Raises `Missing`."""

    async def begin(self, kind: str, about: Facts, principal: str, key: str | None) -> Facts:
        """Raises `DuplicateDiffers`, and any error for which the operation would be refused."""

    async def cancel(self, operation_id: str) -> Facts:
        """Raises `Missing`, `OperationEnded`."""

    async def events(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[Sequence[Facts], str | None]:
        """Events that this server saw, newest first. `wanted`: kind, bookie and log. Raises `Missing`."""

"""State machines and exclusive writers of the synchronous client."""

import pytest

from rollbook import LogConfig, wal
from rollbook.api.client.sync import SyncClient
from rollbook.logservice.log_config import WriterMode
from rollbook.proto.errors import ClientClosed, StaleEpoch
from tests.unit.api.client.test_sync import client, core, server_thread, url
from tests.unit.api.wal.conftest import Counter

__all__ = ["client", "core", "server_thread", "url"]


def test_sync_state_machine_leads_and_is_deposed(client: SyncClient) -> None:
    mine, yours = Counter(), Counter()
    with (
        wal.StateMachine(client, "counter", mine, holder="a") as machine,
        wal.StateMachine(client, "counter", yours, holder="b") as standby,
    ):
        with machine.lead() as term:
            assert term.propose(b"5") == 5
            futures = [term.submit(b"1") for _ in range(100)]
            assert [each.result(30) for each in futures] == list(range(6, 106))
            assert machine.leader() == "a"
            assert machine.checkpoint()
            assert standby.read(lambda: yours.total) == 105
            with standby.lead("steal") as next_term:
                assert next_term.propose(b"1") == 106
                with pytest.raises(StaleEpoch):
                    term.propose(b"1")
                assert isinstance(term.over(), StaleEpoch)
                assert term.is_over
                assert (term.epoch, next_term.epoch) == (1, 2)
        with pytest.raises(ClientClosed):
            next_term.propose(b"1")
        machine.barrier()
        assert (machine.applied, machine.epoch, machine.failure) == (102, 2, None)


def test_sync_exclusive_writer_appends_in_order(client: SyncClient) -> None:
    log = client.open("plain", create=LogConfig(writer_mode=WriterMode.EXCLUSIVE))
    with wal.ExclusiveWriter(log, "a") as writer:
        assert (writer.epoch, writer.fence, writer.failure) == (1, 0, None)
        assert writer.append(b"first") == 0
        futures = [writer.submit(b"%d" % index) for index in range(1000)]
        assert [each.result(30) for each in futures] == list(range(1, 1001))
    values = [record.value for record in log.read(1)]
    assert values == [b"%d" % index for index in range(1000)]

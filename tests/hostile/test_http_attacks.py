"""Hostile connections to a log server's HTTP port: each gets its response and costs little, and others are served.

Figures: `python -m tests bench hostile`.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from tests.bench import rest
from tests.bench.rest import RestServer
from tests.hostile.attacks import Attack, Mob, all_have_ended
from tests.hostile.http_attacks import LOG, LONG_LOG, http_attacks
from tests.support import log_processes

_COUNT: Final = 20
_PATIENCE_S: Final = 60.0
_MIB: Final = 1024 * 1024


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with log_processes.running(tmp_path_factory.mktemp("cluster")) as cluster:
        server = RestServer(cluster)
        asyncio.run(rest.make_logs(server, LOG, LONG_LOG))
        yield server


@pytest.mark.parametrize("attack", http_attacks(), ids=lambda attack: attack.name)
def test_attack_gets_its_response_while_others_are_served(
    attack: Attack, victim: RestServer
) -> None:
    before = victim.resident_bytes
    with Mob(victim.address) as mob:
        mob.add(attack, _COUNT)
        assert mob.run(all_have_ended, _PATIENCE_S)
        assert all(member.heard.startswith(attack.answer) for member in mob.members)
        assert asyncio.run(rest.is_served(victim, LOG))
        assert victim.resident_bytes - before <= _COUNT * _MIB

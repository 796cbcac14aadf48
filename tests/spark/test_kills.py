"""The plan of a run of kills, its strikes and the judge of its result."""

import os
import random
from pathlib import Path

import pytest

from rollbook.api.client.sync import SyncClient
from tests.regressions.lone_server import Site
from tests.spark import kills, struck
from tests.spark.kills import SOURCES, TARGET, VICTIMS
from tests.spark.struck import FOLDER, STAGES, Strike


def test_plan_kills_each_victim_at_each_stage() -> None:
    planned = kills.plan(len(STAGES) * len(VICTIMS), random.Random(7))
    assert sorted(planned) == sorted((stage, victim) for stage in STAGES for victim in VICTIMS)
    first = kills.plan(4, random.Random(7))
    assert sorted(victim for _, victim in first) == sorted(VICTIMS)
    assert len({stage for stage, _ in first}) == 4


def test_strike_kills_once_and_at_its_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(os, "kill", lambda pid, _signal: killed.append(pid))
    struck.pass_by("write")
    Strike("write", 1, [17], is_fatal=True).arm(tmp_path)
    struck.pass_by("read")
    struck.pass_by("write")
    assert killed == []
    struck.pass_by("write")
    struck.pass_by("write")
    assert killed == [17, os.getpid()]
    assert struck.has_struck(tmp_path)


def test_judge_finds_lost_duplicate_and_reordered_records(site: Site, client: SyncClient) -> None:
    target = client.open(TARGET, create=True)
    for name in SOURCES:
        client.open(name, create=True).append_many([b"%s %d" % (name.encode(), n) for n in (0, 1)])
    first, second, third = (f"seen {name}".encode() for name in SOURCES)
    target.append_many(
        [first + b" 0", first + b" 1", second + b" 1", second + b" 0", third + b" 1"]
    )
    target.append(first + b" 1")
    said: list[str] = []
    tally = kills.judge(client, ["a stage was missed"], said.append)
    assert (tally.passed, tally.failed) == (5, 4)
    assert said == [
        "a stage was missed",
        f"{SOURCES[0]} 1 is in {TARGET} once too often",
        f"records of {SOURCES[1]} are in another order in {TARGET}",
        f"{SOURCES[2]} 0 is not in {TARGET}",
    ]

"""A log is created with its settings in one change."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import rollbook
from tests.regressions import lone_server
from tests.regressions.defects import defect
from tests.regressions.lone_server import Site

LOGS = "/v1/namespaces/default/logs"
JSON = {"content_type": "application/json"}
AT_ONCE, ROUNDS = 6, 8


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with lone_server.running(tmp_path_factory.mktemp("site")) as site:
        yield site


@defect(
    "concurrent-equal-puts-refused",
    "Some of several equal, concurrent PUTs of a log with settings were refused.",
)
def test_concurrent_equal_puts_of_a_log_all_succeed(site: Site) -> None:
    body = json.dumps({"retention_age_s": 60, "description": "orders"}).encode()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(ROUNDS):
            path = f"{LOGS}/raced-{number}"
            asked = [pool.submit(site.ask, path, "PUT", body, **JSON) for _ in range(AT_ONCE)]
            statuses = sorted(each.result()[0] for each in asked)
            assert statuses == [200] * (AT_ONCE - 1) + [201]


@defect(
    "exclusive-log-was-open-at-first",
    "A log was created open to everybody, and made exclusive by a second change.",
)
def test_log_never_exists_without_its_settings(site: Site) -> None:
    body = json.dumps({"writer_mode": "exclusive", "retention_age_s": 60}).encode()
    with rollbook.connect(site.url) as client, ThreadPoolExecutor(1) as pool:
        for number in range(ROUNDS):
            name = f"exclusive-{number}"
            asked = pool.submit(site.ask, f"{LOGS}/{name}", "PUT", body, **JSON)
            seen: set[str] = set()
            while not asked.done() or not seen:
                status, _, told = site.ask(f"{LOGS}/{name}")
                if status == 200:
                    seen.add(json.loads(told)["config"]["writer_mode"])
            assert seen == {"exclusive"}
            assert asked.result()[0] == 201
            assert client.open(name).config.retention_age_s == 60

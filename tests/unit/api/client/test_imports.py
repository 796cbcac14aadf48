"""Which modules importing the client loads, and in which order."""

import json
import os
import subprocess
import sys
from typing import Final

import pytest

_LOAD_GRPC: Final = (
    "rollbook.api.client.aio",
    "rollbook.api.client.sync",
    "rollbook.api.cli.server.log",
    "tests.bench.load.logs_worker",
)


def test_client_imports_no_heavy_packages() -> None:
    code = (
        "import rollbook, sys, json\n"
        "assert 'grpc' not in sys.modules\n"
        "rollbook.connect, rollbook.aio.connect, rollbook.LogConfig, rollbook.wal\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = json.loads(found.stdout)
    heavy = {"fastapi", "pydantic", "httpx", "structlog", "kazoo", "prometheus_client", "sqlite3"}
    assert not {name.partition(".")[0] for name in loaded} & heavy
    ours = {name.split(".")[1] for name in loaded if name.startswith("rollbook.")}
    assert ours == {"api", "logservice", "proto"}


@pytest.mark.parametrize("module", _LOAD_GRPC)
def test_grpc_is_imported_after_its_environment_is_set(module: str) -> None:
    """gRPC reads its environment once, when it is imported.

    Imported too early, it reads each socket in an extra thread, and a lone append takes a quarter
    longer.
    """
    code = (
        f"import {module}, json, os, sys\n"
        "print(json.dumps([list(sys.modules), os.environ['GRPC_EXPERIMENTS']]))"
    )
    environment = {name: value for name, value in os.environ.items() if "GRPC" not in name}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, check=True, env=environment)
    loaded, experiments = json.loads(found.stdout)
    assert loaded.index("rollbook.api.grpc") < loaded.index("grpc")
    assert "-event_engine_client" in experiments

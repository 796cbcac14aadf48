"""What a program pays for loading the client."""

import json
import subprocess
import sys


def test_both_faces_load_grpc_and_nothing_heavier() -> None:
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

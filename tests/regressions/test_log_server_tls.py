"""A log server process that uses TLS to other log servers."""

import os
import signal
import sys
from pathlib import Path

from tests.regressions.defects import defect
from tests.support import commands, processes
from tests.support.certificates import Authority

_PATIENCE_S = 60.0


@defect(
    "log-servers-that-cannot-relay-say-nothing",
    "Log servers with TLS and no --tls-authorities refused each other's certificates, and nothing said so at the start.",
)
def test_log_server_warns_of_a_certificate_its_peers_refuse(tmp_path: Path) -> None:
    tls = Authority.make(tmp_path).issue("log", "DNS:log-1.example.com")
    (tmp_path / "token").write_text("a-token-of-these-servers\n")
    (tmp_path / "token").chmod(0o600)
    url = f"sqlite://{tmp_path}/metadata.db"
    made = commands.run("cluster", "init", "--metadata", url)
    assert made.returncode == 0, made.stderr
    said = tmp_path / "said"
    with processes.family() as children:
        server = children.start(
            sys.executable,
            "-m",
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            url,
            "--listen",
            ":0",
            "--advertise",
            "log-1.example.com",
            "--server-name",
            "log-1",
            "--tls-certificate",
            tls.certificate,
            "--tls-key",
            tls.key,
            "--token-file",
            str(tmp_path / "token"),
            log=said,
        )
        server.line(_PATIENCE_S)
        os.kill(server.pid, signal.SIGTERM)
        server.wait(_PATIENCE_S)
    assert "--peer-authorities FILE" in said.read_text()

"""The cluster with `compose/compose.tls.yaml`: clients outside, eavesdropping, and new
certificates.
"""

import json
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import rollbook
from tests.deploy.cluster import Cluster
from tests.support import commands
from tests.support.capture import Capture

FILES: Final = ("compose.yaml", "compose.tls.yaml")
RECORD: Final = b"a record that nobody on the bridge may read"
_FOLDER: Final = "/etc/rollbook/tls"
_TOKENS: Final = ("admin", "servers", "monitor", "example")
# A TLS handshake contains the server name in the clear.
_CONTROL: Final = b"\x00\x0b\x00\x00\x08bookie-1"
_LOGS: Final = 10  # Both log servers own at least one, except in one run of 512.
_READ_AGAIN_WITHIN_S: Final = 30.0
_PORTS: Final = {
    "bookie-1": 3182,
    "bookie-2": 3182,
    "bookie-3": 3182,
    "log": 7400,
    "recovery": 8002,
}
_PRESENT: Final = (
    "openssl s_client -connect 127.0.0.1:{port} </dev/null 2>/dev/null "
    "| openssl x509 -noout -serial -issuer"
)


class Outside:
    """A machine outside the network that reaches one published port, and has CA and token for TLS."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._authorities = folder / "ca.pem"
        self._token = folder / "token"
        self._shown: dict[str, Any] = {}
        if cluster.has_tls:
            self._token.touch(0o600)
            self._token.write_text(cluster.read(f"{_FOLDER}/admin.token") + "\n")
            self.fetch_authorities()
            self._shown = {
                "authorities": str(self._authorities),
                "token_file": str(self._token),
                "tls_name": "log",
            }

    def fetch_authorities(self) -> None:
        self._authorities.write_text(self._cluster.read(f"{_FOLDER}/ca.pem") + "\n")

    @contextmanager
    def client(self) -> Iterator[Any]:
        address = f"127.0.0.1:{self._cluster.published('log', 7400)[0]}"
        url = f"log{'+tls' if self._shown else ''}://{address}"
        with rollbook.connect(url, wait_s=30, **self._shown) as client:
            yield client

    def append_and_read(self) -> int:
        """Runs the README's program with several logs; returns how many log servers own one of
        them.
        """
        owners = set()
        with self.client() as client:
            for number in range(_LOGS):
                log = client.open(f"outside-{number}", create=True)
                ack = log.append(RECORD, key=b"3")
                with log.writer() as writer:
                    writer.submit(RECORD)
                found = [record.value for record in log.read(start=ack.first_offset)]
                assert found == [RECORD, RECORD], found
                owners.add(log.state().owner)
        return len(owners)

    def curl(self, path: str, *words: str) -> Any:
        url = (
            f"127.0.0.1:{self._cluster.published('log', 7480)[0]}/v1/namespaces/default/logs{path}"
        )
        if self._shown:
            token = f"Authorization: Bearer {self._token.read_text().strip()}"
            words = (*words, "--cacert", str(self._authorities), "--header", token)
        done = subprocess.run(
            [
                "curl",
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--max-time",
                "20",
                "--header",
                "Log-Forward: auto",
                *words,
                f"{'https' if self._shown else 'http'}://{url}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"curl {path}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def append_and_read_with_curl(self) -> None:
        body = json.dumps({"records": [{"data": RECORD.decode()}]})
        for number in range(_LOGS):
            appended = self.curl(f"/outside-{number}/records", "--json", body)
            assert appended, appended

    def run_commands(self) -> None:
        """Runs commands on the host, and adds a principal."""
        server = f"log+tls://127.0.0.1:{self._cluster.published('log', 7400)[0]}"
        shown = ("--tls-authorities", str(self._authorities), "--tls-name", "log")

        def names(token: Path) -> str:
            words = ("log", "ls", "--server", server, *shown, "--token-file", str(token))
            done = commands.run(*words)
            assert done.returncode == 0, done.stderr
            return done.stdout.decode()

        assert "outside-0" in names(self._token)
        file = f"{_FOLDER}/access.toml"
        token = self._cluster.compose(
            "run",
            "--rm",
            "--no-deps",
            "--entrypoint=rollbook",
            "certificates",
            "access",
            "add",
            "reports",
            "--file",
            file,
            "--read",
            "default/outside-1",
        )
        path = self._token.with_name("reports")
        path.touch(0o600)
        path.write_text(token.split()[-1] + "\n")

        def is_known() -> bool:
            with suppress(AssertionError):
                return "outside-1" in names(path)
            return False

        self._cluster.until(is_known, _READ_AGAIN_WITHIN_S, "a new principal is known")
        assert "outside-0" not in names(path)

    def require_old_authority_is_refused(self) -> None:
        context = ssl.create_default_context(cafile=str(self._authorities))
        context.check_hostname = False
        for port in self._cluster.published("log", 7480):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
                try:
                    context.wrap_socket(plain)
                except ssl.SSLCertVerificationError:
                    continue
            raise AssertionError(f"{port} still presents a certificate of the old authority")

    def require_refused_without(self) -> None:
        """Requires that a missing token and a wrong CA are refused."""
        port = self._cluster.published("log", 7480)[0]
        for words in (["--cacert", str(self._authorities)], []):
            done = subprocess.run(
                [
                    "curl",
                    "--silent",
                    "--fail",
                    *words,
                    f"https://127.0.0.1:{port}/v1/namespaces/default/logs",
                ],
                capture_output=True,
                check=False,
            )
            assert done.returncode == (22 if words else 60), done.returncode


@contextmanager
def outside(cluster: Cluster) -> Iterator[Outside]:
    with tempfile.TemporaryDirectory(prefix="rb-outside-") as folder:
        yield Outside(cluster, Path(folder))


@contextmanager
def eavesdropping(cluster: Cluster) -> Iterator[None]:
    """Captures on all interfaces, including bridge and loopback: no record or token may be
    readable.
    """
    tokens = [cluster.read(f"{_FOLDER}/{name}.token").strip().encode() for name in _TOKENS]
    capture = Capture(RECORD, *tokens, _CONTROL)
    try:
        yield
        capture.await_control()
    finally:
        capture.end()
    assert capture.seen[_CONTROL], "the capture has no handshake with a bookie"
    for word in (RECORD, *tokens):
        assert not capture.seen[word], f"{capture.seen[word]} packets show {word[:12]!r}…"


def presented(cluster: Cluster) -> dict[str, str]:
    """Serial number and issuer of the certificate that each container presents."""
    return {
        name: cluster.engine.docker("exec", name, "bash", "-c", _PRESENT.format(port=port))
        for service, port in _PORTS.items()
        for name in cluster.containers(service)
    }


def replace_all_certificates(cluster: Cluster) -> None:
    """Adds a new CA, replaces all certificates and removes the old CA, without restarts."""
    before, since = presented(cluster), _since(cluster)
    assert all("serial=" in each for each in before.values()), before
    make = ("run", "--rm", "--no-deps", "certificates")
    cluster.compose(*make, "authority")
    cluster.compose(*make, "renew")

    def are_new() -> bool:
        now = presented(cluster)
        return all(
            set(now[name].splitlines()).isdisjoint(old.splitlines()) for name, old in before.items()
        )

    cluster.until(are_new, _READ_AGAIN_WITHIN_S, "new certificates are presented")
    cluster.compose(*make, "forget")
    assert _since(cluster) == since


def _since(cluster: Cluster) -> dict[str, str]:
    names = [each for each in cluster.containers() if "certificates" not in each]
    return {name: cluster.engine.inspect(name, "{{.State.StartedAt}}") for name in names}

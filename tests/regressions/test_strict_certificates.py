"""Python 3.13's strict checks accept certificates of a CA made by `openssl req -x509`."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.bookie_admin_client import AdminClient
from tests.regressions.defects import defect
from tests.support.certificates import Authority


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"state": "SERVING"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


@pytest.fixture
def pages(authority: Authority) -> Iterator[str]:
    """The URL of a server whose certificate the authority signed."""
    files = authority.issue("bookie", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with http.server.HTTPServer(("127.0.0.1", 0), _Pages) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@defect(
    "admin-pages-refuse-what-servers-accept",
    "On Python 3.13 recovery servers and commands refused the certificates of bookies' pages that docs/security.md makes.",
)
def test_admin_client_accepts_a_plain_ca_under_strict_checks(
    authority: Authority, pages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def as_of_python_313(*words: Any, **settings: Any) -> ssl.SSLContext:
        context = usual(*words, **settings)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_of_python_313)
    client = AdminClient(pages, None, authority.certificate)
    assert client.get("/api/v1/bookie/state") == {"state": "SERVING"}

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from rollbook.api.access.certificate_expiry_watch import CertificateWatch
from rollbook.proto.errors import BadConfig
from rollbook.proto.runtime.certificate_expiry import certificate_end_s
from tests.support.certificates import Authority

DAY_S = 86_400


def test_certificate_expiry_is_read_and_warned_of(tmp_path: Path) -> None:
    """G3: warns once each 30, 7 and 1 days before the end; a renewed certificate is noticed."""
    authority = Authority.make(tmp_path)
    shown = tmp_path / "shown.pem"
    for days in (100, 20_000):  # X.509 encodes times after 2049 differently.
        issued = authority.issue("server", "DNS:x", days=days)
        shown.write_bytes(Path(issued.certificate).read_bytes())
        said = subprocess.run(
            ["openssl", "x509", "-in", str(shown), "-noout", "-enddate", "-dateopt", "iso_8601"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        end_s = certificate_end_s(str(shown))
        text = datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        assert said.strip() == f"notAfter={text}"
    now_s = end_s - 100 * DAY_S
    watch = CertificateWatch(str(shown), lambda: now_s)
    with structlog.testing.capture_logs() as logs:
        for left in (100, 31, 30, 29, 8, 6.5, 6, 1, 0.5, -3):
            now_s = end_s - left * DAY_S
            watch.look()
    assert [each["days_left"] for each in logs] == [30, 6.5, 1]
    renewed = authority.issue("server", "DNS:x", days=200)
    shown.write_bytes(Path(renewed.certificate).read_bytes())
    watch.look()
    assert watch.stats.expires() == certificate_end_s(str(shown)) != end_s


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_invalid_certificate_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.pem"
    path.write_text(text)
    with pytest.raises(BadConfig):
        certificate_end_s(str(path))

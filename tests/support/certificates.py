"""A CA, certificates of servers, and valid and expired certificates of clients."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from rollbook.proto.runtime.tls import TlsFiles

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Authority:
    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        made = cls(folder)
        _openssl(
            "req",
            "-x509",
            *_KEY,
            "-days",
            "2",
            "-subj",
            "/CN=authority",
            "-out",
            made.certificate,
            "-keyout",
            str(folder / "ca.key"),
        )
        return made

    @property
    def certificate(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self, name: str, alternative: str, *, days: int = 2) -> TlsFiles:
        """`alternative` has openssl's form: `DNS:ingest.example.com`.

        With 0 days it has expired.
        """
        request, certificate, key = (
            str(self.folder / f"{name}.{kind}") for kind in ("csr", "pem", "key")
        )
        _openssl(
            "req",
            *_KEY,
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName={alternative}",
            "-out",
            request,
            "-keyout",
            key,
        )
        _openssl(
            "x509",
            "-req",
            "-in",
            request,
            "-copy_extensions",
            "copy",
            "-days",
            str(days),
            "-CA",
            self.certificate,
            "-CAkey",
            str(self.folder / "ca.key"),
            "-CAcreateserial",
            "-out",
            certificate,
        )
        return TlsFiles(certificate, key, self.certificate)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)

"""Calls a bookie's admin pages, and raises the errors that they return."""

import http.client
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from rollbook.proto.client_credential_safety import may_show_token, require_certificate_of
from rollbook.proto.errors import (
    BadConfig,
    BookieUnreachable,
    ConnectionLost,
    Outcome,
    RollbookError,
    every_error,
)
from rollbook.proto.runtime.system_error_text import describe_error


@dataclass(frozen=True, slots=True)
class AdminClient:
    url: str  # `http://host:port`, or `host:port`.
    token_file: str | None = None
    ca_file: str | None = None
    tls_certificate: str | None = None  # The certificate for a bookie that has --tls-authorities.
    tls_key: str | None = None  # If None, the key is in the certificate's file.
    insecure: bool = False  # The token may go over the network in the clear.
    timeout_s: float = 30.0
    answer_bytes_max: int = 64 * 1024 * 1024

    def get(self, path: str, **query: Any) -> Any:
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(wanted)}" if wanted else path)

    def put(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._ask("PUT", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = self._connection()
        headers = {"accept": "application/json", "content-type": "application/json"}
        if self.token_file:
            headers["authorization"] = f"Bearer {self._token()}"
        try:
            connection.connect()
        except OSError as error:
            raise BookieUnreachable(
                f"no bookie answers at {self.url}: {describe_error(error)}",
                next_step="start the bookie with --http, and use the same address here",
            ) from error
        try:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, headers
            )
            with connection.getresponse() as response:
                answer = response.read(self.answer_bytes_max)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(
                f"{self.url} closed the connection: {describe_error(error)}",
                next_step=self._after_hang_up(),
            ) from error
        finally:
            connection.close()
        return answer_of(response.status, response.getheader("content-type", ""), answer)

    def _after_hang_up(self) -> str:
        if self.url.startswith("https:") and self.tls_certificate:
            return (
                f"check that a CA in the bookie's --tls-authorities has signed {self.tls_certificate}, and that this "
                "certificate is valid now: `openssl x509 -noout -issuer -dates -in FILE` shows both"
            )
        if self.url.startswith("https:"):
            return (
                "if the bookie was started with --tls-authorities, use --tls-certificate with a certificate "
                "that one of these CAs has signed"
            )
        return "check that this is the bookie's --http address; with --http-tls it begins with https://"

    def _connection(self) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            scheme, host, port = "", None, None
        if scheme not in ("http", "https") or host is None:
            raise BadConfig(
                f"{self.url} is not an address",
                next_step="write an address such as http://127.0.0.1:8001",
            )
        require_certificate_of(self.tls_key, self.tls_certificate, "--tls-certificate")
        uses_tls = scheme == "https"
        if self.token_file and not may_show_token(host, uses_tls=uses_tls, insecure=self.insecure):
            raise BadConfig(
                f"the token would go to {self.url} in the clear",
                next_step="start the bookie with --http-tls and use --http https://… here, "
                "or use --insecure in a network that you trust",
            )
        if scheme == "http":
            return http.client.HTTPConnection(host, port or 8001, timeout=self.timeout_s)
        from rollbook.proto.runtime.tls import trusting_context

        try:
            context = trusting_context(self.ca_file)
        except OSError as error:
            raise BadConfig(
                f"cannot read the certificates in {self.ca_file}: {describe_error(error)}"
            ) from error
        if self.tls_certificate:
            try:
                context.load_cert_chain(self.tls_certificate, self.tls_key)
            except OSError as error:
                raise BadConfig(
                    f"cannot use the certificate in {self.tls_certificate}: {describe_error(error)}"
                ) from error
        return http.client.HTTPSConnection(
            host, port or 8001, timeout=self.timeout_s, context=context
        )

    def _token(self) -> str:
        assert self.token_file
        try:
            with open(self.token_file, encoding="ascii") as file:
                return file.readline().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"cannot read the token: {describe_error(error)}") from error


def answer_of(status: int, media_type: str, answer: bytes) -> Any:
    if not media_type.startswith(("application/json", "application/problem+json")):
        text = answer[:200].decode(errors="replace")
        if status < 400:
            return text
        raise RollbookError(
            f"the response has status {status}: {text}",
            next_step="check that this is a bookie's --http address",
        )
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise RollbookError(f"the response is not JSON: {error}") from error
    if status < 400:
        return found
    raise error_of(found)


def error_of(problem: Any) -> RollbookError:
    """Returns the error that the bookie raised. `problem` is the JSON object in the bookie's response."""
    if not isinstance(problem, dict):
        return RollbookError("the bookie sent an invalid response")
    reason, fields = problem.get("reason"), problem.get("fields") or []
    kind = next((each for each in every_error() if each.code.reason == reason), RollbookError)
    what = str(problem.get("detail", ""))
    if isinstance(fields, list) and fields:
        known = [each for each in fields if isinstance(each, dict)]
        what += ": " + "; ".join(f"{each.get('field')}: {each.get('problem')}" for each in known)
    ids = problem.get("ids")
    error = kind(
        what,
        next_step=problem.get("next_step") or "",
        **(ids if isinstance(ids, dict) else {}),
    )
    with suppress(ValueError):
        error.outcome = Outcome(problem.get("outcome"))
    return error

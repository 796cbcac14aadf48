"""Formats nodes of the metadata store as readable text, with their secrets hidden (DB4)."""

import json
import re
from string import ascii_letters, digits
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_DEPTH_MAX: Final = 100
_SECRET: Final = re.compile(
    "passw(?:or)?d?|passphrase|pwd|secret|token|credential|private|hmac|auth|bearer", re.IGNORECASE
)
_KEY: Final = re.compile(r"keys?$", re.IGNORECASE)  # `apiKey`, `key`.
_KEY_IN_LINE: Final = re.compile(r"keys?[\"']?\s*(?=[:=])", re.IGNORECASE)
_LABELS: Final = ("name", "key", "field", "id", "option", "property", "setting")
_LABEL_LINE: Final = re.compile(r"[\s-]*(?:name|key|field|id)\s*[:=]\s*[\"']?[\w.]*", re.IGNORECASE)
_VALUE_LINE: Final = re.compile(r"[\s-]*[\"']?value", re.IGNORECASE)
_NAME: Final = re.compile(r"[\w.-]+")
_NAME_CHARACTERS: Final = f"{ascii_letters}{digits}_.-"
_PEM_BEGINS: Final = "-----BEGIN"
_PEM_ENDS: Final = "-----END"
# The base64 text of a key or certificate that has no PEM lines around it: an encoded PEM block, or DER.
_BODY: Final = re.compile(
    r"(?<![A-Za-z0-9+/])(?:LS0tLS1CRUdJTi|MI[GHI]|M[CFH][0-9A-Za-z]CAQ|b3BlbnNzaC1rZXk)[A-Za-z0-9+/]{24,}"
)
_GOES_ON: Final = re.compile(r"[\s\"']*[A-Za-z0-9+/]+={0,2}[\s\"',]*")
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LEDGER_HEAD: Final = b"BookieMetadataFormatVersion"


def node_text(value: bytes) -> str:
    """A metadata node's value as text. Bytes that are not text are not shown, since they may contain a password."""
    if not value:
        return "(empty)"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"({len(value):,} bytes that are not text)"
    if value.startswith(_LEDGER_HEAD) or _CONTROL.search(text):
        return f"({len(value):,} bytes that are not text)"
    try:
        found = json.loads(text)
    except RecursionError:
        return _too_deep(value)
    except ValueError:
        return _masked_text(text)
    if not isinstance(found, dict | list | str):
        return text
    try:
        return json.dumps(_masked(found, _DEPTH_MAX), indent=2, ensure_ascii=False)
    except RecursionError:
        return _too_deep(value)


def _too_deep(value: bytes) -> str:
    return f"({len(value):,} bytes of JSON that is nested too deeply)"


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name) or _KEY.search(name))


def _masked(found: Any, depth_left: int) -> Any:
    """The value with its secrets hidden. Raises `RecursionError` if it is nested too deeply."""
    if not depth_left:
        raise RecursionError
    if isinstance(found, dict):
        labels = [name for name, value in found.items() if _is_label(name, value)]
        return {
            (name if _is_plain_name(name) else _masked_text(name)): value
            if name in labels
            else HIDDEN
            if labels or _is_secret(name)
            else _masked(value, depth_left - 1)
            for name, value in found.items()
        }
    if isinstance(found, str):
        return _masked_text(found)
    if not isinstance(found, list):
        return found
    shown: list[Any] = []
    is_hidden = False  # True after an item such as `"password"`.
    for each in found:
        shown.append(HIDDEN if is_hidden else _masked(each, depth_left - 1))
        is_hidden = is_hidden or (
            isinstance(each, str) and (_is_secret(each) or bool(_BODY.search(each)))
        )
    return shown


def _is_plain_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not _BODY.search(name)


def _is_label(name: str, value: Any) -> bool:
    """Whether `value` is the name of a secret. The secret is then another value of the same object."""
    return name.lower() in _LABELS and isinstance(value, str) and _is_secret(value)


def _masked_text(text: str) -> str:
    """Masks secrets line by line. The lines that continue a secret are masked, too."""
    shown: list[str] = []
    base, is_due, is_within = 0, False, False  # The state after the last secret.
    in_key, in_body = False, False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        goes_on = is_within and (
            is_due or not line.strip() or indent > base or line.lstrip().startswith("-")
        )
        in_body = bool(_BODY.search(line)) or (in_body and bool(_GOES_ON.fullmatch(line)))
        if in_body:
            shown.append(HIDDEN)
        elif in_key or _PEM_BEGINS in line:
            in_key = _PEM_ENDS not in line
            shown.append(HIDDEN)
        elif goes_on:
            # After a blank line, the value may still follow.
            is_due = (is_due and not line.strip()) or line.endswith("\\")
            shown.append(HIDDEN if line.strip() else line)
        elif found := _SECRET.search(line) or _KEY_IN_LINE.search(line):
            before, rest = line[: found.start()], line[found.end() :]
            if shown and _VALUE_LINE.match(shown[-1]):
                shown[-1] = HIDDEN  # In a list of pairs, the value may come before the name.
            is_plain = not any(mark in before for mark in "=:{,[\"'")
            is_plain = is_plain or bool(_LABEL_LINE.fullmatch(before))
            shown.append(f"{line[: found.end()]} {HIDDEN}" if is_plain else HIDDEN)
            base, is_within = indent, True
            is_due = line.endswith("\\") or not any(map(str.isalnum, rest.lstrip(_NAME_CHARACTERS)))
        else:
            is_within = False
            shown.append(_without_user(line))
    return "\n".join(shown)


def _without_user(line: str) -> str:
    """Hides the user and the password in a URL: the part between `://` and `@`."""
    if "://" not in line or "@" not in line:
        return line
    words = []
    for word in line.split(" "):
        scheme, mark, rest = word.partition("://")
        _, at, host = rest.rpartition("@")
        words.append(f"{scheme}{mark}{HIDDEN}{at}{host}" if at else word)
    return " ".join(words)

"""Contexts: clusters by name, in a file of the user's own.

    current = "prod"
    [contexts.prod]
    server = "log+tls://log-1.example.com:7400"
    token_file = "/etc/rollbook/prod.token"        tls_authorities, tls_certificate, tls_key: other files
    tls_name = "log.example.com"                   in the certificates of all its servers
    insecure = true                                the token is shown in the clear
    metadata = "zk://zk1,zk2,zk3/ledgers"          for what asks no log server

The file is `$XDG_CONFIG_HOME/rollbook/contexts.toml`, readable by its owner alone. It names token files and
holds no token, but metadata URLs whole, with the passwords that may be in them. The command line takes
precedence; if it names a server, that gets no token that was meant for another.
"""

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any, Final

from rollbook.proto.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Context:
    server: str
    token_file: str = ""
    tls_authorities: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_name: str = ""
    insecure: bool = False
    metadata: str = ""

    def __post_init__(self) -> None:
        for name in KEYS:
            if name != "insecure" and not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is a text")
        if not isinstance(self.insecure, bool):  # A text would count as true.
            raise TypeError("insecure is either true or false")


@dataclass(frozen=True, slots=True)
class Contexts:
    current: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.current, str):
            raise TypeError("current is the name of one")


KEYS: Final = tuple(each.name for each in fields(Context))


def path() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "rollbook", "contexts.toml")


def load() -> Contexts:
    """Raises `BadConfig`."""
    try:
        with open(path(), "rb") as file:
            import tomllib  # Few have such a file.

            said: dict[str, Any] = tomllib.load(file)
        contexts = {name: Context(**each) for name, each in said.pop("contexts", {}).items()}
        return Contexts(contexts=contexts, **said)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadConfig(f"the contexts cannot be read: {error}", path=path()) from error


def save(contexts: Contexts) -> None:
    """Writes the file completely or not at all."""
    folder = os.path.dirname(path())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lines = [f"current = {_text(contexts.current)}"]
    for name, context in contexts.contexts.items():
        lines.append(f"\n[contexts.{_text(name)}]")
        values = ((key, getattr(context, key)) for key in KEYS)
        lines += [f"{key} = {_text(value)}" for key, value in values if value]
    import tempfile  # It takes longer to load than most commands need.

    descriptor, temporary = tempfile.mkstemp(dir=folder)  # Only its owner may read it.
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))
    os.replace(temporary, path())


def _text(value: str | bool) -> str:
    """The text in TOML, which has none of JSON's pairs of surrogates."""
    return json.dumps(value, ensure_ascii=False)


def find(name: str) -> Context:
    """Raises `BadConfig`."""
    found = load().contexts.get(name)
    if found is None:
        raise BadConfig(f"there is no context {name}", next_step="rollbook context ls")
    return found

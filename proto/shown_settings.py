"""The settings in force as a process shows them to its operators: each with its value and the
origin of the value.

No setting is a secret: tokens and keys are in files, and settings name these. A user and a password
in a URL are left out.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

_BY_DEFAULT: Final = "default"
_BY_THE_PROCESS: Final = "set by the process"
_OF_A_URL: Final = re.compile(r"(?<=://)[^/\s]*@")


def shown_settings(
    sections: Mapping[str, object], sources: Mapping[str, str]
) -> list[dict[str, str]]:
    """`sections` has the dataclasses by section name; `sources` is what `load_config` has filled."""
    return [
        {
            "section": section,
            "name": each.name,
            "value": _text_of(getattr(config, each.name)),
            "source": sources.get(f"{section}.{each.name}") or _source_of(config, each),
        }
        for section, config in sections.items()
        if is_dataclass(config)
        for each in fields(config)
    ]


def _source_of(config: object, each: Any) -> str:
    is_default = getattr(config, each.name) == each.default
    return _BY_DEFAULT if is_default else _BY_THE_PROCESS


def _text_of(value: Any) -> str:
    """Returns the value as a user would type it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Enum():
            return str(value.value)
        case tuple() | list():
            return ", ".join(map(_text_of, value))
    return _OF_A_URL.sub("", str(value))

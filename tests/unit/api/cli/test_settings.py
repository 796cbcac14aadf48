"""Who gave a bad value is found by the setting's name, which an error carries."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.ledger.config import ClientConfig
from rollbook.logservice.config import LogServerConfig, LogServiceConfig
from rollbook.proto.errors import BadConfig

_NEEDED: dict[type[Any], dict[str, Any]] = {
    BookieConfig: {"metadata": "zk://a/l"},
    StorageConfig: {"journal_dir": "/j", "ledger_dirs": ("/l",)},
    ServerConfig: {},
    SpaceConfig: {},
    LogServerConfig: {"metadata": "zk://a/l"},
    LogServiceConfig: {},
    ClientConfig: {},
}
_BAD: dict[Any, tuple[Any, ...]] = {
    int: (-1, 0, 1 << 62),
    float: (-1.0, 0.0, 1e9),
    str: ("", "x"),
    bool: (True, False),
    tuple[str, ...]: ((), ("",), ("x", "x")),
}


@pytest.mark.parametrize("shape", _NEEDED)
def test_each_refusal_carries_the_names_of_its_settings(shape: type[Any]) -> None:
    kinds, names = get_type_hints(shape), {field.name for field in fields(shape)}
    refused: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        for value in _BAD[kinds[name]]:
            try:
                shape(**{**_NEEDED[shape], name: value})
            except BadConfig as error:
                refused.append((name, error.settings))
    assert len(refused) > 1
    for name, settings in refused:
        assert name in settings
        assert names.issuperset(settings)

"""Arguments that are not UTF-8."""

import pytest

from rollbook.api.cli import main as cli
from rollbook.api.cli.utf8_arguments import require_utf8
from rollbook.proto.errors import InvalidRequest
from tests.unit.api.cli.shell import Shell

_STEP = "give it as UTF-8; only parts of records may have other bytes: values, keys, headers"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("log", "append", "x", "v", "--producer", "\udcff"), "--producer"),
        (("log", "append", "x", "v", "--holder=\udcff"), "--holder"),
        (("log", "append", "x", "\udcff", "--holder", "\udcff"), "--holder"),
        (("log", "create", "x", "--description", "\udcff"), "--description"),
        (("log", "create", "x", "--label", "a=b", "--label", "\udcff"), "--label"),
        (("log", "read", "x", "--from", "1", "-o\udcff"), "--output"),
        (("log", "transfer", "x", "\udcff"), "SERVER"),
        (("log", "writer", "acquire", "\udcff", "--holder", "me"), "LOG"),
        (("log", "info", "\udcff"), "LOG"),
        (("cluster", "drain", "\udcff"), "SERVER"),
        (("dev", "--data", "\udcff"), "--data"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(words: tuple[str, ...], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        require_utf8(cli.rollbook, words)
    assert str(refused.value) == f"{name} is not UTF-8: byte 1 of it is 0xff · {_STEP}"


def test_error_names_the_first_byte_that_is_not_utf8() -> None:
    with pytest.raises(InvalidRequest, match="byte 4 of it is 0xfe"):
        require_utf8(cli.rollbook, ("log", "show", "éa\udcfe\udcff"))


@pytest.mark.parametrize(
    "words",
    [
        ("log", "show", "é"),
        ("log", "append", "x", "\udcff", "--key", "\udcff", "--header", "a=\udcff"),
        ("log", "read", "x", "-f", "%v\udcff"),
        ("log", "append", "x", "--none", "\udcff"),  # click reports what cannot be parsed.
        ("\udcff",),
        ("--none\udcff",),
    ],
)
def test_parts_of_records_may_have_other_bytes(words: tuple[str, ...]) -> None:
    require_utf8(cli.rollbook, words)


def test_append_takes_non_utf8_values_but_not_options(shell: Shell) -> None:
    shell.run("log", "append", "bytes", "v", "--create", "--producer", "p\udcff", code=2)
    assert shell.errors == (
        "error: --producer is not UTF-8: byte 2 of it is 0xff [INVALID]\n"
        f"  outcome: not applied: nothing was changed\n  try: {_STEP}\n"
    )
    shell.run("log", "append", "bytes", "\udcff", "--create", "--key", "\udcfe")
    (record,) = shell.json("log", "read", "bytes")
    assert (record["value_base64"], record["key_base64"]) == ("/w==", "/g==")
    shell.run("log", "append", "bytes", "v", "--opti\udcff", code=2)
    assert "No such option" in shell.errors

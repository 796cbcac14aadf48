"""Record templates: they write the record's bytes unchanged, except to a terminal."""

import pytest

from rollbook.api.cli.log.record_format import compile_format
from rollbook.logservice.core.record_block import NO_HEADERS, Record
from rollbook.logservice.ids import Offset
from rollbook.logservice.position_syntax import AtTime, parse_position
from rollbook.proto.errors import InvalidRequest

TIME_US = 1_795_219_200_000_042
FULL = Record(Offset(7), b"a\xff", b"key", {"by": b"me", "x": b"\x00"}, TIME_US, 5)
BARE = Record(Offset(8), b"", None, NO_HEADERS, TIME_US, None)


@pytest.mark.parametrize(
    ("template", "of_full", "of_bare"),
    [
        ("", b"", b""),
        ("%o", b"7", b"8"),
        (r"%o\t%s\n", b"7\t2\n", b"8\t0\n"),
        ("%T", b"%d" % TIME_US, b"%d" % TIME_US),
        ("%t", b"2026-11-21T00:00:00.000042Z", b"2026-11-21T00:00:00.000042Z"),
        ("%e|", b"5|", b"|"),
        (r"%k=%v\0", b"key=a\xff\0", b"=\0"),
        ("%v{hex} %v{base64}", b"61ff Yf8=", b" "),
        ("%k{hex}", b"6b6579", b""),
        ("%h", b"by=me,x=\0", b""),
        ("%h{by}%h{nobody}", b"me", b""),
        ("%%{x}%%o", b"%{x}%o", b"%{x}%o"),
        ("\udcff", b"\xff", b"\xff"),  # How Python passes an argument's byte that is not UTF-8.
        (r"100%%\\é\r", "100%\\é\r".encode(), "100%\\é\r".encode()),
    ],
)
def test_template_is_filled_with_a_record(template: str, of_full: bytes, of_bare: bytes) -> None:
    write = compile_format(template)
    assert (write(FULL), write(BARE)) == (of_full, of_bare)


def test_formatted_time_is_a_valid_position() -> None:
    told = compile_format("ts:%t")(FULL).decode()
    assert parse_position(told) == AtTime(TIME_US)


@pytest.mark.parametrize("template", ["%", "%x", r"\q", "%o{hex}", "%v{rot13}", "%v{", "a\\"])
def test_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compile_format(template)
    assert "%o" in caught.value.next_step


def test_control_characters_of_records_are_escaped_on_a_terminal() -> None:
    """The template's own control characters are kept, and output to a pipe is not escaped."""
    evil = Record(
        Offset(7), "\x1b]0;x\x07é\u202e\n\t".encode() + b"\xff", b"\x9b", {"h": b"\r"}, TIME_US, 5
    )
    template = "\x1b[1m%k %v %h %h{h} %v{hex}"
    shown = compile_format(template, on_terminal=True)(evil)
    plain, _, rest = shown.partition(b" ")
    assert plain == b"\x1b[1m\\x9b"
    assert rest.startswith(
        rb"\x1b]0;x\x07" + "é".encode() + rb"\u202e" + b"\n\t" + rb"\xff h=\r \r 1b"
    )
    assert evil.value in compile_format(template)(evil)

"""Cookies: exact bytes, older versions, and invalid data."""

from dataclasses import replace

import pytest

from rollbook.proto.errors import BadMetadata, InvalidRequest
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.ids import BookieId
from tests.golden import metadata as golden

COOKIE = Cookie(
    BookieId("127.0.0.1:3181"),
    journal_dirs=("/data/journal",),
    ledger_dirs=("/data/l1", "/data/l2"),
    instance_id=golden.INSTANCE_ID.decode(),
)


def test_cookie_matches_bytes_of_java() -> None:
    assert pack_cookie(COOKIE) == golden.COOKIE
    assert unpack_cookie(golden.COOKIE) == COOKIE


def test_version_4_is_read_like_version_5() -> None:
    assert unpack_cookie(b"4" + golden.COOKIE[1:]) == COOKIE


@pytest.mark.parametrize("data", [golden.COOKIE_V3, golden.COOKIE_V3.rstrip()])
def test_version_3_is_three_bare_lines(data: bytes) -> None:
    assert unpack_cookie(data) == replace(COOKIE, instance_id=None)


@pytest.mark.parametrize(
    "cookie",
    [
        replace(COOKIE, index_dirs=("/data/index",)),
        replace(COOKIE, journal_dirs=("/j1", "/j2"), instance_id=None),
        replace(COOKIE, journal_dirs=(), ledger_dirs=()),
        replace(COOKIE, ledger_dirs=('/with "quotes" and \\', "/nach-Süden/日本", "/new\nline")),
    ],
)
def test_cookies_survive_the_round_trip(cookie: Cookie) -> None:
    assert unpack_cookie(pack_cookie(cookie)) == cookie


def test_index_directories_are_written_last() -> None:
    packed = pack_cookie(replace(COOKIE, index_dirs=("/data/index",)))
    assert packed == golden.COOKIE + b'indexDirs: "1\\t/data/index"\n'


@pytest.mark.parametrize("path", ["", "/a,b", "/a\tb", "/\udcff", "/\udcff\U0001f4d6"])
def test_directory_that_text_cannot_hold_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        pack_cookie(replace(COOKIE, journal_dirs=(path,), ledger_dirs=(path,)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"5\n",
        b"6" + golden.COOKIE[1:],
        b"2" + golden.COOKIE_V3[1:],
        b"3\nonly:1\n/two",
        b"3\n\xff\n/j\n0\n",
        golden.COOKIE.replace(b'"2', b'"3'),
        golden.COOKIE.replace(b"/data/l1\\t", b"\\t"),
        golden.COOKIE.replace(b"127.0.0.1:3181", b"a/b"),
        golden.COOKIE + b"surprise: 1\n",
        golden.COOKIE + b'instanceId: "twice"\n',
    ],
)
def test_invalid_cookie_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_cookie(data)

import pytest

from rollbook.proto.errors import EntryTooLarge, InvalidRequest, RollbookError
from rollbook.proto.metastore.core.request_checks import (
    OP_BYTES,
    REQUEST_BYTES_MAX,
    check_ops,
    check_path,
    name_of,
    parent_of,
)
from rollbook.proto.ports import Check, Create, Delete, Op, Set


@pytest.mark.parametrize(
    "path", ["/", "/a", "/a/b.c-D_9:@", "/..a", "/a..", "/.../x", "/" + 255 * "n"]
)
def test_valid_paths_are_accepted(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "//",
        "/a/",
        "/a//b",
        "/.",
        "/..",
        "/a/../b",
        "/a/.",
        "/./a",
        "/a b",
        "/a\n",
        "/a\0",
        "/\x7f",
        "/é",
        "/\ud800",
        "/\U0001f600",
        "/" + 256 * "n",
        "/n" * 2049,
    ],
)
def test_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_path(path)


@pytest.mark.parametrize(
    ("op", "refusal"),
    [
        (Create("/a/"), InvalidRequest),
        (Delete("/"), InvalidRequest),
        (Set("/a", b"", version=-1), InvalidRequest),
        (Check("/a", version=2**31), InvalidRequest),
        (Set("/a", "text"), InvalidRequest),  # type: ignore[arg-type]  # Tests a wrong type.
        (Set("/a", bytes(REQUEST_BYTES_MAX)), EntryTooLarge),
    ],
)
def test_first_invalid_operation_is_named(op: Op, refusal: type[RollbookError]) -> None:
    with pytest.raises(refusal) as caught:
        check_ops([Create("/a"), op, Create("also wrong")])
    assert caught.value.ids["op"] == 1


def test_size_limit_applies_to_the_whole_request() -> None:
    rest = REQUEST_BYTES_MAX - 2 * (OP_BYTES + len("/a"))
    check_ops([Set("/a", bytes(rest)), Set("/a", b"")])
    with pytest.raises(EntryTooLarge):
        check_ops([Set("/a", bytes(rest)), Set("/a", b"1")])


def test_parent_and_name_of_paths() -> None:
    assert [parent_of(path) for path in ("/a", "/a/b", "/a/b/c")] == ["/", "/a", "/a/b"]
    assert name_of("/a/b") == "b"

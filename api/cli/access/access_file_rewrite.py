"""Changes sections of the access file under a lock, and replaces the whole file each time.

A server that reads the file during a change sees the old file or the new one. The last line of both, `# end`,
shows that the file is complete (AF1).
"""

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from rollbook.api.access.core.access_file import SECTION, Principals, parse_principals
from rollbook.api.access.core.file_stability import END
from rollbook.proto.errors import BadConfig

# The header of a TOML table.
_HEAD: Final = re.compile(r"^\[[^\n]*\][ \t]*(?:#[^\n]*)?$", re.MULTILINE)


def parted(path: str, text: str, name: str) -> tuple[str, str, str]:
    """Returns the text before the principal's section, the section, and the text after it. Raises
    `BadConfig`.
    """
    heads = [*_HEAD.finditer(text)]
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        with suppress(tomllib.TOMLDecodeError, AttributeError):
            table = tomllib.loads(head[0])
            if list(table.get(SECTION, {})) == [name]:
                start = _start_of_comment(text, head.start())
                stop = _end_of_values(
                    text, head.end(), following.start() if following else len(text)
                )
                return text[:start], text[start:stop], text[stop:]
    raise BadConfig(
        f"found no table heading for {name} in the file", path=path, next_step="edit the file"
    )


def _start_of_comment(text: str, head: int) -> int:
    """Returns the start of the comment directly above the table's header, or the header's start without one."""
    start = head
    while start:
        line = text.rfind("\n", 0, start - 1) + 1
        if not text[line:start].lstrip().startswith("#"):
            break
        start = line
    return start


def _end_of_values(text: str, start: int, stop: int) -> int:
    """Returns the position after the section's last value, and after one empty line that follows it. Comments
    below that position belong to the next section.
    """
    end = start + text.startswith("\n", start)
    for line in re.finditer(r"[^\n]*\n?", text[start:stop]):
        if line[0].strip() and not line[0].lstrip().startswith("#"):
            end = start + line.end()
    return end + (end < stop and text.startswith("\n", end))


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Locks the file's folder, because two commands at the same time would undo each other's changes."""
    try:
        import fcntl
    except ImportError:  # Windows has no fcntl, and no server reads an access file there.
        yield
        return
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def rewrite(
    path: str,
    there: Principals,
    change: Callable[[str], str],
    names: Sequence[str],
    *,
    tokens: int | None,
) -> None:
    """Replaces the file with a copy in which only these principals have changed. Raises `BadConfig`.

    `tokens` is the number of tokens that each principal has afterwards; None: the principals are removed.
    """
    with open(path, encoding="utf-8") as file:
        text = change(file.read())
    found = parse_principals(tomllib.loads(text).get(SECTION, {}))
    counts = [len(each.tokens) for each in found if each.name in names]
    if counts != ([] if tokens is None else [tokens] * len(names)):
        raise BadConfig(
            f"the settings of {', '.join(names)} are in several places of the file",
            path=path,
            next_step="edit the file",
        )
    if [each for each in found if each.name not in names] != [
        each for each in there if each.name not in names
    ]:
        raise BadConfig("other principals would change, too", path=path, next_step="edit the file")
    replace_file(path, "", text)


def replace_file(path: str, section: str, text: str | None = None) -> None:
    """Replaces the file with one that has `text` (None: the present text) and `section`. The mode and the owner
    stay the same. Raises `OSError`.
    """
    path = os.path.realpath(path)
    there, found = "", None
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        there, found = file.read(), os.fstat(file.fileno())
    end = f"\n{END.decode()}\n"
    text = there if text is None else text
    text = f"\n{text.rstrip()}\n".removesuffix(end).strip("\n")
    new = f"{path}.{secrets.token_hex(4)}.new"
    try:
        with open(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(f"{text}\n{section}{end}".lstrip())
            if found is not None:
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise

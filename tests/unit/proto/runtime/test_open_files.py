"""The limit of open files on the real system, in separate processes."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "soft_after"),
    [
        (100, 500, 300, 300, 300),
        (100, 500, 1000, 500, 500),
        (400, 500, 300, 300, 400),  # A higher limit is kept.
    ],
)
def test_open_file_limit_is_raised_as_far_as_allowed(
    soft: int, hard: int, wanted: int, allowed: int, soft_after: int
) -> None:
    code = (
        "import resource\n"
        "from rollbook.proto.runtime.open_files import allow_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"print(allow_open_files({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(soft_after), str(hard)]


def test_connection_limit_is_a_share_of_open_files() -> None:
    code = (
        "import resource\n"
        "from rollbook.proto.runtime.open_files import door_of\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))\n"
        "print(door_of(0.5, 5000), door_of(0.25, 5000), door_of(0.5, 7), door_of(0.0001, 5))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["400", "200", "7", "1"]

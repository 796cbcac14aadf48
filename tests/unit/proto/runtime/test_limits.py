"""How many files a process may open, on the real system: in processes of their own."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "soft_after"),
    [
        (100, 500, 300, 300, 300),
        (100, 500, 1000, 500, 500),
        (400, 500, 300, 300, 400),  # What is there already stays.
    ],
)
def test_as_many_files_as_wanted_if_they_can_be_had(
    soft: int, hard: int, wanted: int, allowed: int, soft_after: int
) -> None:
    code = (
        "import resource\n"
        "from rollbook.proto.runtime.limits import allow_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"print(allow_open_files({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(soft_after), str(hard)]

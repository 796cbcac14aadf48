"""Checks the additional dependencies of this package once, so that one error says what to install."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

_NEEDED: Final = {"pyspark": (4, 2), "pyarrow": (18, 0)}
_INSTALL: Final = "pip install 'rollbook[spark]' installs both; Spark itself needs Java 17 or newer"


def require_libraries() -> None:
    """Raises `ImportError`."""
    for package, least in _NEEDED.items():
        wanted = f"rollbook.spark needs {package} {least[0]}.{least[1]} or newer"
        try:
            found = version(package)
        except PackageNotFoundError:
            raise ImportError(f"{wanted}, which is not installed: {_INSTALL}") from None
        numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
        if numbers < least:
            raise ImportError(f"{wanted}, and {found} is installed: {_INSTALL}")

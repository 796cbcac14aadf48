"""The error for missing libraries says how to install them."""

from importlib.metadata import PackageNotFoundError

import pytest

from rollbook.api.spark import requirements


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"pyarrow": "18.1.0"}, "needs pyspark 4.2 or newer, which is not installed"),
        (
            {"pyspark": "4.1.3", "pyarrow": "18.0.0"},
            "needs pyspark 4.2 or newer, and 4.1.3 is installed",
        ),
        ({"pyspark": "4.2.0"}, "needs pyarrow 18.0 or newer, which is not installed"),
        ({"pyspark": "4.2.0", "pyarrow": "17.0.0"}, "needs pyarrow 18.0 or newer, and 17.0.0"),
    ],
)
def test_missing_or_old_library_is_named(
    found: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        try:
            return found[package]
        except KeyError:
            raise PackageNotFoundError(package) from None

    monkeypatch.setattr(requirements, "version", version)
    with pytest.raises(ImportError, match=f"{said}.*pip install 'rollbook\\[spark\\]'.*Java 17"):
        requirements.require_libraries()


@pytest.mark.parametrize("pyspark", ["4.2.0", "4.3.0", "5.0.0.dev1"])
def test_newer_libraries_are_accepted(pyspark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pyspark": pyspark, "pyarrow": "26.0.1"}
    monkeypatch.setattr(requirements, "version", found.__getitem__)
    requirements.require_libraries()

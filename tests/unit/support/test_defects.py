"""The register reports each defect as gone, back or skipped."""

from types import SimpleNamespace

import pytest

from tests.regressions.defects import Register, defect


def _register(*outcomes: str) -> Register:
    @defect("a-name", "Something was seen.")
    def test() -> None: ...

    register = Register()
    items = [SimpleNamespace(nodeid=f"test[{n}]", function=test) for n in range(len(outcomes))]
    register.pytest_collection_finish(SimpleNamespace(items=items))
    for item, outcome in zip(items, outcomes, strict=True):
        report = {"failed": outcome == "failed", "skipped": outcome == "skipped"}
        register.pytest_runtest_logreport(SimpleNamespace(nodeid=item.nodeid, **report))
    return register


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [(("passed", "passed"), "gone"), (("passed", "failed"), "BACK"), (("skipped",), "skipped")],
)
def test_one_failed_test_means_the_defect_is_back(outcomes: tuple[str, ...], verdict: str) -> None:
    assert _register(*outcomes).lines() == [f"{verdict:<8}a-name: Something was seen."]


def test_a_regression_test_must_name_its_defect() -> None:
    def test() -> None: ...

    item = SimpleNamespace(nodeid="test", function=test)
    with pytest.raises(AssertionError, match="names no defect"):
        Register().pytest_collection_finish(SimpleNamespace(items=[item]))

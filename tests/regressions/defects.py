"""Names the defects, so that a run can report which of them are gone."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

_Test = TypeVar("_Test", bound=Callable[..., Any])

ATTRIBUTE: Final = "defect_of_this_test"


@dataclass(frozen=True)
class Defect:
    name: str  # Words with hyphens; one defect may have several tests.
    seen: str  # The symptom that a user saw, in one sentence.


def defect(name: str, seen: str) -> Callable[[_Test], _Test]:
    """Marks a test as a regression test of this defect."""
    assert re.fullmatch(r"[a-z0-9-]+", name), f"lower case and hyphens: {name}"
    assert seen.endswith("."), f"one sentence: {seen}"

    def mark(test: _Test) -> _Test:
        setattr(test, ATTRIBUTE, Defect(name, seen))
        return test

    return mark


class Register:
    """A pytest plugin that collects the tested defects and whether all their tests passed."""

    def __init__(self) -> None:
        self.defects: dict[str, Defect] = {}
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.of_test: dict[str, str] = {}  # By node id.

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            found: Defect | None = getattr(item.function, ATTRIBUTE, None)
            assert found, f"{item.nodeid} names no defect: decorate it with @defect(…)"
            self.defects[found.name] = found
            self.of_test[item.nodeid] = found.name

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(self.of_test[report.nodeid])
        elif report.skipped:
            self.skipped.add(self.of_test[report.nodeid])

    def listed(self) -> list[str]:
        """One line for each defect, without the results of its tests."""
        return [f"{name}: {self.defects[name].seen}" for name in sorted(self.defects)]

    def lines(self) -> list[str]:
        """One line for each defect, beginning with those that are back."""
        verdicts = {name: self._verdict(name) for name in self.defects}
        by_verdict = sorted(self.defects, key=lambda name: (verdicts[name] == "gone", name))
        return [f"{verdicts[name]:<8}{name}: {self.defects[name].seen}" for name in by_verdict]

    def _verdict(self, name: str) -> str:
        if name in self.failed:
            return "BACK"
        return "skipped" if name in self.skipped else "gone"

"""Cases that once failed, cut down and kept for ever, one JSON file each.

`{"why": prose, "broke": rule, "mutant": name or null, "case": the case}`. A case without a mutant is
a bug that was in the code: it must pass now. One with a mutant pins a planted bug: with the bug it
must break the rule, without it must pass.

A change of the kernel may move all chance that is not in the case, and with it the one interleaving
that a pin needs. So a pin holds if the bug shows with one of a few seeds for that chance; the
protocol without the bug must pass with all of them.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tests.simulation.mutants import by_name
from tests.simulation.run import find_failure
from tests.simulation.schedule import Case
from tests.simulation.shrink import shrink
from tests.simulation.worlds import Scene, scene

FOLDER: Final = Path(__file__).parent
SEEDS: Final = 40  # Of chance, beside the one in the case.
# Of the other worlds: a run of whole bookies takes ten times as long.
PIN_SEEDS: Final = 6  # One of them has to show the planted bug.
FOUND_SEEDS: Final = 2  # A bug that was in the code must show with none.
STURDY: Final = 8
PIN_TRIES: Final = 5
PIN_RUNS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class Regression:
    name: str
    why: str
    broke: str
    mutant: str | None
    case: Case

    @classmethod
    def load(cls, path: Path) -> Self:
        fields: dict[str, Any] = json.loads(path.read_text())
        case = Case.from_json(fields.pop("case"))
        return cls(name=path.stem, case=case, **fields)

    def save(self) -> None:
        fields = {**asdict(self), "case": self.case.to_json()}
        del fields["name"]
        text = json.dumps(fields, indent=1, ensure_ascii=False)
        (FOLDER / f"{self.name}.json").write_text(text + "\n")

    def cases(self) -> list[Case]:
        """Itself first, then with other seeds."""
        if self.case.world == "toy":
            seeds = SEEDS
        elif self.mutant is not None:
            seeds = PIN_SEEDS
        else:
            seeds = FOUND_SEEDS
        return [self.case, *(replace(self.case, seed=seed) for seed in range(seeds))]

    def failure(self) -> str | None:
        """What it says against the code as it is, or None."""
        actors = scene(self.case.world)
        for case in self.cases():
            report = actors.run(case)
            if report.broke is not None:
                return f"{self.name} with seed {case.seed}: {report.detail}"
        if self.mutant is not None and not self._shows(by_name(self.mutant).scene()):
            return f"{self.name}: {self.mutant} no longer breaks {self.broke!r}"
        return None

    def _shows(self, broken: Scene) -> bool:
        return any(broken.run(case).broke == self.broke for case in self.cases())

    def sturdiness(self) -> int:
        """With how many seeds a pin shows its bug: at 1, the next change of the kernel hides it."""
        assert self.mutant is not None
        broken = by_name(self.mutant).scene()
        return sum(broken.run(case).broke == self.broke for case in self.cases())


def every_regression() -> list[Regression]:
    return [Regression.load(path) for path in sorted(FOLDER.glob("*.json"))]


def pin(mutant: str, from_seed: int = 0) -> Regression:
    """Finds a planted bug some times, cuts its cases down, and keeps the sturdiest."""
    planted = by_name(mutant)
    broken = planted.scene()
    best: tuple[int, Regression] | None = None
    seed = from_seed
    for _ in range(PIN_TRIES):
        found = find_failure(broken, range(seed, seed + planted.seeds_max))
        if found is None:
            break
        seed = found[0] + 1
        shrunk = shrink(broken.case(found[0]), lambda case: broken.run(case).broke, PIN_RUNS_MAX)
        pinned = Regression(mutant, planted.what, shrunk.broke, mutant, shrunk.case)
        sturdiness = pinned.sturdiness()
        if best is None or sturdiness > best[0]:
            best = (sturdiness, pinned)
        if sturdiness >= STURDY:
            break
    if best is None:
        raise LookupError(f"{mutant} was not found in {planted.seeds_max:,} seeds")
    best[1].save()
    return best[1]

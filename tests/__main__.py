"""The command for every kind of test: `python -m tests KIND`.

A kind exits with 0 only if all its checks pass, and with 2 if it cannot check anything here.
Each prints `WHAT: N passed, N failed` as its last line, except `bench`, which ends with its table.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

try:
    from tests import kinds, lanes
    from tests.tally import Tally
except ModuleNotFoundError as error:
    if str(error.name).startswith("tests."):
        raise  # A bug in the tests, not a missing package.
    sys.exit(
        f"{error.name} is not installed for {sys.executable}: "
        "`make .venv/.test` installs what tests need; then run .venv/bin/python -m tests …"
    )


def main() -> int:
    if not __debug__:
        sys.exit("the tests rest on assert: run Python without -O")
    arguments = _parser().parse_args()
    run: Callable[[argparse.Namespace], Tally | None] = arguments.run
    tally = run(arguments)
    if tally is None:  # This kind prints its own summary.
        return 0
    for reason in tally.skipped:
        print(f"skipped: {reason}")
    print(tally.last_line())
    if tally.skipped and not tally.passed and not tally.failed:
        return lanes.NOTHING_CHECKED
    return 0 if tally.holds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    kind = parser.add_subparsers(title="kinds", metavar="KIND", required=True)

    check = kind.add_parser(
        "check",
        help="before each commit: format, lint, types, conventions, pure rules, some seeds of the simulator; "
        f"{kinds.CHECK_TAKES}",
    )
    check.set_defaults(run=kinds.check)

    everything = kind.add_parser("all", help="every kind that stands, in a size that takes minutes")
    everything.add_argument(
        "--thorough", action="store_true", help="what must hold before a change lands; ~30 min"
    )
    everything.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    everything.set_defaults(run=kinds.everything)

    unit = kind.add_parser("unit", help="cores, codecs, conventions, and what users touch")
    unit.add_argument(
        "--of",
        choices=("all", "cores", "doors", "rules", "conventions"),
        default="all",
        help="doors: commands, clients and pages, with their processes; cores: the rest; of these, rules: "
        "the pure cores, conventions: what the code, the docs and the settings keep to (all)",
    )
    unit.add_argument("pytest_arguments", nargs="*", help="handed to pytest, after `--`")
    unit.set_defaults(run=kinds.unit)

    messages = kind.add_parser("messages", help="the words of errors at each door; part of unit")
    messages.add_argument(
        "--write", action="store_true", help="keep the words of today in tests/messages"
    )
    messages.set_defaults(run=kinds.messages)

    contract = kind.add_parser("contract", help="one suite, and one random history, on every store")
    contract.add_argument("--sequences", type=_count, default=300, help="random histories (300)")
    contract.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    contract.set_defaults(run=kinds.contract)

    simulate = kind.add_parser("simulate", help="seeded runs on the deterministic simulator")
    simulate.add_argument("--seeds", type=_count, default=200, help="how many (200)")
    simulate.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    simulate.add_argument("--world", default="toy", help="what is simulated (toy)")
    simulate.add_argument(
        "--digest", action="store_true", help="print `seed digest-of-its-trace`, a line each"
    )
    simulate.set_defaults(run=kinds.simulate)

    determinism = kind.add_parser("determinism", help="one seed, one trace, whatever the hash seed")
    determinism.add_argument("--seeds", type=_count, default=60, help="how many (60)")
    determinism.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    determinism.add_argument("--world", help="what is simulated (every world)")
    determinism.set_defaults(run=kinds.determinism)

    mutants = kind.add_parser("mutants", help="planted bugs that fresh seeds must find")
    mutants.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    mutants.add_argument(
        "--one-in",
        type=_count,
        default=1,
        metavar="N",
        help="a share of them, by the first seed (1)",
    )
    mutants.add_argument("--show", metavar="NAME", help="find one, shrink it, tell what happened")
    mutants.set_defaults(run=kinds.mutants)

    crash = kind.add_parser("crash", help="SIGKILLs, power cuts and crash images")
    crash.add_argument(
        "--of",
        action="append",
        choices=("bookie", "store", "callbacks"),
        help="what dies: a bookie, owners of the embedded store (both, one after the other), or servers and receivers of callbacks",
    )
    crash.add_argument("--kills", type=_count, default=40, help="of each, under load (40)")
    crash.add_argument("--cuts", type=_count, default=10, help="power cuts of each (10)")
    crash.add_argument("--images", type=_count, help="of a bookie's files: that many instead")
    crash.add_argument(
        "--flips",
        choices=("half", "once", "all"),
        default="once",
        help="besides images: each byte once, half of them by the first seed, or in stores of every digest, reserved ones too (once)",
    )
    crash.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    crash.set_defaults(run=kinds.crash)

    hostile = kind.add_parser("hostile", help="connections that mean no good, at every door")
    hostile.set_defaults(run=kinds.hostile)

    dashboard = kind.add_parser("dashboard", help="the dashboard in Chromium, on real processes")
    dashboard.add_argument("--pictures", metavar="FOLDER", help="take those of docs/dashboard.md")
    dashboard.add_argument("pytest_arguments", nargs="*", help="handed to pytest, after `--`")
    dashboard.set_defaults(run=kinds.dashboard)

    regressions = kind.add_parser(
        "regressions", help="defects that users met, each by name, through the doors they used"
    )
    regressions.add_argument("pytest_arguments", nargs="*", help="handed to pytest, after `--`")
    regressions.add_argument("--list", action="store_true", help="every defect, with what was seen")
    regressions.add_argument(
        "--before", metavar="COMMIT", help="these tests with that product: each defect must show"
    )
    regressions.add_argument(
        "--keep", action="store_true", help="with --before: write tests/regressions/DEFECTS.md"
    )
    regressions.set_defaults(run=kinds.regressions)

    spark = kind.add_parser(
        "spark", help="the data source for Spark: its rules, and one SparkSession; < 90 s"
    )
    spark.add_argument("pytest_arguments", nargs="*", help="handed to pytest, after `--`")
    spark.add_argument(
        "--kills",
        type=_count,
        help="of drivers, workers, log owners and bookies: that many instead",
    )
    spark.add_argument(
        "--export-kills",
        type=_count,
        help="of an export to an archive, beside appends and retention: that many instead",
    )
    spark.add_argument(
        "--flaw", default="", metavar="NAME", help="with --kills: a bug of tests/spark/flaws.py"
    )
    spark.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    spark.set_defaults(run=kinds.spark)

    fuzz = kind.add_parser("fuzz", help="mutated bytes through every decoder")
    fuzz.add_argument("--runs", type=_count, default=50_000, help="inputs in all (50,000)")
    fuzz.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    fuzz.set_defaults(run=kinds.fuzz)

    rest = kind.add_parser("rest", help="random requests to a real server, from its OpenAPI")
    rest.add_argument(
        "--of",
        choices=("logs", "cluster"),
        default="logs",
        help="what is asked: a log server, or management of a cluster (logs)",
    )
    rest.add_argument("--cases", type=_count, default=1_000, help="requests in all (1,000)")
    rest.add_argument(
        "--kills",
        type=_count,
        help="of servers, under a script that appends, or under operations: that many instead",
    )
    rest.add_argument(
        "--browser", action="store_true", help="Chromium is one of those that follow (10 kills)"
    )
    rest.add_argument(
        "--schemathesis", action="store_true", help="it makes the requests (`make schemathesis`)"
    )
    rest.add_argument("--from", dest="seed", type=int, default=0, help="first seed (0)")
    rest.set_defaults(run=kinds.rest)

    newcomer = kind.add_parser(
        "newcomer", help="the README's first screens, the tutorial and HTTP as typed, with seconds"
    )
    newcomer.set_defaults(run=kinds.newcomer)

    interop = kind.add_parser("interop", help="unmodified Java clients and tools on our bookies")
    interop.add_argument(
        "--bookies",
        choices=("rollbook", "java"),
        default="rollbook",
        help="the same tests on Java bookies, for reference (rollbook)",
    )
    interop.set_defaults(run=kinds.interop)

    languages = kind.add_parser(
        "languages",
        help="examples in Go, Java and JavaScript while servers are killed; buf lint, pyright",
    )
    languages.add_argument(
        "--prepare", action="store_true", help="only download and build what it needs"
    )
    languages.set_defaults(run=kinds.languages)

    chaos = kind.add_parser("chaos", help="a real cluster under kills, pauses, cuts and slow disks")
    chaos.add_argument(
        "--of",
        choices=("ledgers", "logs", "cluster", "kv"),
        default="ledgers",
        help="who suffers: clients of bookies, log servers and theirs, the copies of lost and drained bookies, "
        "or the example's leaders (ledgers)",
    )
    chaos.add_argument("--leaders", type=_count, default=100, help="killed or frozen, of kv (100)")
    chaos.add_argument(
        "--planted",
        action="store_true",
        help="of kv: bugs in its nodes, each of which must be found",
    )
    chaos.add_argument("--seconds", type=_count, default=60, help="of faults (60)")
    chaos.add_argument("--from", dest="seed", type=int, default=0, help="the plan's seed (0)")
    chaos.add_argument(
        "--closed-within",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="after healing every ledger must be closed (120; 10 is meant, on a quiet machine)",
    )
    chaos.set_defaults(run=kinds.chaos)

    deploy = kind.add_parser(
        "deploy", help="the cluster of compose/compose.yaml in containers, under failures; < 3 min"
    )
    deploy.add_argument(
        "--all", action="store_true", help="each part of tests/deploy/DESIGN.md; ~20 min"
    )
    deploy.add_argument(
        "--of",
        action="append",
        default=[],
        choices=["failures", "monitoring", "tls", "chart", "systemd"],
        help="one part of --all; repeated for several",
    )
    deploy.add_argument(
        "--prepare", action="store_true", help="only download what it needs, and try the engine"
    )
    deploy.add_argument(
        "--prepared", action="store_true", help="skip unless --prepare has downloaded everything"
    )
    deploy.set_defaults(run=kinds.deploy)

    bench = kind.add_parser("bench", help="a table of medians against their targets")
    bench.add_argument("name", choices=sorted(kinds.BENCHES), help="what to measure")
    bench.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    bench.add_argument("--runs", type=_count, default=5, help="runs behind each median (5)")
    bench.add_argument("--gib", type=float, help="of entries, for memory (10) and restart (1)")
    bench.add_argument("--seconds", type=float, help="of each round, for spark (3)")
    bench.add_argument(
        "--only",
        nargs="+",
        metavar="PART",
        help="these parts alone; a wrong name lists them",
    )
    bench.add_argument(
        "--plot", metavar="FOLDER", type=Path, help="draw it there, with what is there already"
    )
    bench.set_defaults(run=kinds.bench)
    return parser


def _count(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())

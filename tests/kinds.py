"""The kinds of test behind `python -m tests KIND`, each a function from arguments to a Tally."""

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import io
import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from tests import lanes
from tests.bench import Figure, bare_disk
from tests.support import curl
from tests.tally import Tally, clean, missing_piece, progress_line

BENCHES: Final = {
    name: f"tests.bench.{name}"
    for name in (
        "blocks",
        "bookie",
        "cli",
        "codec",
        "dashboard",
        "hostile",
        "hung",
        "ledger",
        "ledger_client",
        "logs",
        "memory",
        "metastore",
        "recovery",
        "relay",
        "rest",
        "restart",
        "simulator",
        "space",
        "spark",
        "takeover",
    )
}
_SMOKE_SEEDS: Final = {"toy": 100, "bookie": 20, "ledger": 30, "logs": 10, "cluster": 10}
CHECK_TAKES: Final = "4 minutes on two processors"  # It uses less than six minutes of CPU time.


# --- Several kinds in one go --------------------------------------------------------------------


_STYLE: Final = {
    "format": ["ruff", "format", "--check", "--quiet", "."],
    "lint": ["ruff", "check", "--quiet", "."],
    "types": ["mypy"],
}


def check(_arguments: argparse.Namespace) -> Tally:
    """Runs before each commit: takes minutes and needs only what `make check` installs.

    Has two lanes of about the same length, for two processors.
    """
    conventions = {"conventions": ["tests", "unit", "--of=conventions"]}
    rules = {"rules": ["tests", "unit", "--of=rules"]}
    smoke = {
        world: ["tests", "simulate", f"--world={world}", f"--seeds={seeds}"]
        for world, seeds in _SMOKE_SEEDS.items()
    }
    return lanes.run(_STYLE | conventions, rules | smoke)


def everything(arguments: argparse.Namespace) -> Tally:
    """Runs every kind; `--thorough` must pass before a change is merged."""
    first = f"--from={arguments.seed}"
    sizes = {
        "contract": ["--sequences=200" if arguments.thorough else "--sequences=100", first],
        "simulate": ["--seeds=600" if arguments.thorough else "--seeds=500", first],
        "determinism": ["--seeds=60", first],
        # The commit selects a sixth of the mutants and the seeds for them.
        "mutants": ["--one-in=6", first],
        "crash": [
            *(("--kills=20", "--cuts=8") if arguments.thorough else ("--kills=10", "--cuts=5")),
            first,
        ],
        "hostile": [],
        "dashboard": [],
        "fuzz": ["--runs=200000" if arguments.thorough else "--runs=50000", first],
        "rest": ["--cases=3000" if arguments.thorough else "--cases=300", first],
        "newcomer": [],
        "regressions": [],
        "languages": [],
        "spark": [],
    }
    if arguments.thorough:
        sizes |= {"interop": [], "chaos": ["--seconds=40", first]}
    kinds = {name: ["tests", name, *size] for name, size in sizes.items()}
    # Adjacent bytes behave alike, so each commit flips only half of the bytes.
    kinds["images"] = ["tests", "crash", "--images=10000", "--flips=half", first]
    managed = "--cases=1500" if arguments.thorough else "--cases=150"
    kinds["management"] = ["tests", "rest", "--of=cluster", managed, first]
    killed = "--kills=8" if arguments.thorough else "--kills=2"
    kinds["operations"] = ["tests", "rest", "--of=cluster", killed, first]
    kills = ["--kills=10", "--browser"] if arguments.thorough else ["--kills=3"]
    kinds["kills"] = ["tests", "rest", *kills, first]
    kinds["spark-kills"] = [
        "tests",
        "spark",
        "--kills=10" if arguments.thorough else "--kills=4",
        first,
    ]
    if arguments.thorough:
        kinds["deploy"] = ["tests", "deploy", "--prepared"]
        kinds["owners"] = ["tests", "chaos", "--of=logs", "--seconds=15", first]
        kinds["leaders"] = ["tests", "chaos", "--of=kv", "--leaders=8", first]
        kinds["losses"] = ["tests", "chaos", "--of=cluster", "--seconds=40", first]
    bookies = "--seeds=250" if arguments.thorough else "--seeds=60"
    kinds["bookies"] = ["tests", "simulate", "--world=bookie", bookies, first]
    # More than the 600 and 150 seeds that must count, because one in ten proves too little.
    ledgers = "--seeds=700" if arguments.thorough else "--seeds=100"
    kinds["ledgers"] = ["tests", "simulate", "--world=ledger", ledgers, first]
    logs = "--seeds=180" if arguments.thorough else "--seeds=30"
    kinds["logs"] = ["tests", "simulate", "--world=logs", logs, first]
    clusters = "--seeds=300" if arguments.thorough else "--seeds=30"
    kinds["clusters"] = ["tests", "simulate", "--world=cluster", clusters, first]
    style = _STYLE | {"generated": ["tests.generate", "--check"]} if arguments.thorough else {}
    kinds |= style | {"unit": ["tests", "unit", "--of=cores"]}
    kinds["doors"] = ["tests", "unit", "--of=doors"]
    waiting, patient, last = (
        {name: kinds.pop(name) for name in names if name in kinds}
        for names in (_WAITING, _PATIENT, _LAST)
    )
    first_of_all = {name: kinds.pop(name) for name in _FIRST if name in kinds}
    return lanes.run({}, waiting, patient, shared=first_of_all | kinds | last)


# These kinds wait more than they compute, so that two of them can run in parallel. The first ones
# wait for sessions, faults, commands and Spark, the others for processes.
_WAITING: Final[tuple[str, ...]] = (
    "contract",
    "chaos",
    "owners",
    "leaders",
    "losses",
    "deploy",
    "doors",
    "spark",
    "spark-kills",
)
_PATIENT: Final[tuple[str, ...]] = (
    "interop",
    "crash",
    "hostile",
    "dashboard",
    "languages",
    "regressions",
)
# These kinds use virtual time or have long time-outs: they use the CPU time that is left. Each lane
# that has run its own kinds takes the next of these. The longest come first, so that all lanes end
# at about the same time.
_FIRST: Final = (
    "format",
    "lint",
    "types",
    "unit",
    "mutants",
    "images",
    "ledgers",
    "logs",
    "clusters",
    "bookies",
    "determinism",
)
_LAST: Final = ("fuzz", "rest", "management", "operations", "kills", "simulate", "generated")

# --- pytest -------------------------------------------------------------------------------------


class _Counter:
    """A pytest plugin that counts the reported results.

    It also excludes the collected tests from garbage collection, because they live until the end.
    """

    def __init__(self) -> None:
        self.tally = Tally("tests")

    def pytest_sessionstart(self) -> None:
        gc.disable()

    def pytest_collection_finish(self) -> None:
        gc.freeze()
        gc.enable()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tally.failed += 1
        elif report.skipped:
            reason = (
                report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
            self.tally.skipped.append(str(reason).removeprefix("Skipped: "))
        elif report.when == "call":
            self.tally.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tally.failed += 1


def _pytest(*arguments: str, plugins: Sequence[object] = ()) -> Tally:
    import pytest

    counter = _Counter()
    code = pytest.main(["-q", "--no-header", *arguments], plugins=[counter, *plugins])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        counter.tally.failed += (
            1  # pytest was interrupted, got wrong arguments, or collected no test.
        )
    counter.tally.skipped = clean(counter.tally.skipped)
    return counter.tally


# These tests start processes.
_DOORS: Final = ("tests/unit/api", "tests/unit/bench", "tests/unit/docs")


def unit(arguments: argparse.Namespace) -> Tally:
    cores = ["tests/unit", "tests/architecture"]
    ways = {
        "rules": _tests_of_rules(),
        "conventions": ["tests/architecture"],
        "all": cores,
        "cores": [*cores, *(f"--ignore={folder}" for folder in _DOORS)],
        "doors": [*_DOORS],
    }
    return _pytest(*ways[arguments.of], *arguments.pytest_arguments)


def _tests_of_rules() -> list[str]:
    """Unit tests of the pure cores of all packages and of `proto`."""
    cores = (str(each) for each in sorted(Path("tests/unit").rglob("core")))
    return [*cores, "tests/unit/proto", "--ignore=tests/unit/proto/runtime"]


def messages(arguments: argparse.Namespace) -> Tally:
    """Compares messages of all interfaces with `tests/messages`; `--write` updates them."""
    if arguments.write:  # `tests.messages` reads this when pytest loads it.
        os.environ["ROLLBOOK_WRITE_MESSAGES"] = "all"
    return _pytest(*_tests_of_messages())


def _tests_of_messages() -> list[str]:
    """Tests that compare messages; whole files if a helper compares them."""
    found = []
    for path in sorted(Path("tests/unit").rglob("test_*.py")):
        text = path.read_text()
        if "from tests.messages import" not in text:
            continue
        for each in ast.parse(text).body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if re.search(r"\braises_message\(|\.check(_titles)?\(", ast.unparse(each)):
                found.append(f"{path}::{each.name}" if each.name.startswith("test_") else str(path))
    return list(dict.fromkeys(found))


def contract(arguments: argparse.Namespace) -> Tally:
    tally = _pytest("tests/contract")
    differential = importlib.import_module("tests.contract.differential")
    _add(tally, differential.run(arguments.sequences, arguments.seed, _say))
    tally.unit = "tests+histories"
    return tally


def interop(arguments: argparse.Namespace) -> Tally:
    toolchain = importlib.import_module("tests.interop.toolchain")
    java = importlib.import_module("tests.support.java")
    try:
        toolchain.PROJECT.ensure_built()  # Built here, so that it does not count as a test's time.
    except java.NoJava as error:
        reason = missing_piece(java.PIECE, str(error), toolchain.PROJECT.how_to_enable)
        return Tally("tests", skipped=[reason])
    matrix = importlib.import_module("tests.interop.matrix").Matrix(arguments.bookies)
    tally = _pytest("tests/interop", f"--bookies={arguments.bookies}", plugins=[matrix])
    for line in matrix.lines():
        print(line)
    return tally


# --- Kinds with runners of their own ------------------------------------------------------------


def simulate(arguments: argparse.Namespace) -> Tally | None:
    simulation = importlib.import_module("tests.simulation.run")
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    if arguments.digest:
        for seed, digest in simulation.digests(seeds, arguments.world):
            print(seed, digest)
        return None
    tally: Tally = simulation.simulate(seeds, arguments.world, _progress("seeds"))
    return tally


def determinism(arguments: argparse.Namespace) -> Tally:
    """Checks that a seed gives the same trace in two processes with different hash seeds."""
    worlds = (arguments.world,) if arguments.world else tuple(_DETERMINISTIC)
    tally = Tally("seeds")
    for world in worlds:
        seeds = max(1, arguments.seeds // _DETERMINISTIC.get(world, 1))
        sizes = [f"--seeds={seeds}", f"--from={arguments.seed}", f"--world={world}"]
        traces = [
            subprocess.run(
                [sys.executable, "-m", "tests", "simulate", "--digest", *sizes],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout.splitlines()
            for hash_seed in ("1", "2")
        ]
        for first, second in zip(*traces, strict=True):
            if first == second:
                tally.passed += 1
            else:
                tally.failed += 1
                print(f"two traces of {world}: {first} and {second}")
    return tally


_DETERMINISTIC: Final = {"toy": 1, "bookie": 6, "ledger": 6, "logs": 10, "cluster": 10}
"""Divisors for the number of seeds by world, because some worlds take longer."""


def mutants(arguments: argparse.Namespace) -> Tally:
    module = importlib.import_module("tests.simulation.mutants")
    if arguments.show:
        tally: Tally = module.show(arguments.show, arguments.seed, _say)
    else:
        tally = module.run(arguments.seed, _say, arguments.one_in)
        images = importlib.import_module("tests.crash.images.run")
        _add(tally, images.find_flaws(arguments.seed, _say, arguments.one_in))
    return tally


def crash(arguments: argparse.Namespace) -> Tally:
    if arguments.images is not None:
        return _crash_images(arguments)
    tally = _pytest("tests/crash")
    module = importlib.import_module("tests.crash")
    sizes = arguments.kills, arguments.cuts, arguments.seed
    _add(tally, module.run(arguments.of or module.SUBJECTS, *sizes, _say))
    tally.unit = "tests+crashes"
    return tally


def _crash_images(arguments: argparse.Namespace) -> Tally:
    """Simulates power cuts of a bookie's storage, and flips every byte of stored data."""
    module = importlib.import_module("tests.crash.images.run")
    tally = Tally("images+flips")
    _add(tally, module.crash(arguments.images, arguments.seed, _progress("images"), _say))
    _add(
        tally,
        module.flip_bytes(arguments.seed, _progress("flips"), _say, arguments.flips),
    )
    return tally


def chaos(arguments: argparse.Namespace) -> Tally:
    if arguments.of == "logs":
        return _chaos_of_logs(arguments)
    if arguments.of == "kv":
        return _chaos_of_leaders(arguments)
    if arguments.of == "cluster":
        return _chaos_of_clusters(arguments)
    tally = _pytest("tests/chaos")
    if not tally.failed:
        module = importlib.import_module("tests.chaos.run")
        _add(
            tally,
            module.chaos(
                arguments.seconds, arguments.seed, _progress, _say, arguments.closed_within
            ),
        )
        tally.unit = "tests+ledgers"
    return tally


def _chaos_of_logs(arguments: argparse.Namespace) -> Tally:
    tally = _pytest("tests/chaos/logs")
    if not tally.failed:
        module = importlib.import_module("tests.chaos.logs.run")
        _add(tally, module.chaos(arguments.seconds, arguments.seed, _progress, _say))
        tally.unit = "tests+logs"
    return tally


def _chaos_of_clusters(arguments: argparse.Namespace) -> Tally:
    tally = _pytest("tests/chaos/cluster")
    if not tally.failed:
        module = importlib.import_module("tests.chaos.cluster.conductor")
        _add(tally, module.chaos(arguments.seconds, arguments.seed, _progress, _say))
        tally.unit = "tests+ledgers"
    return tally


def _chaos_of_leaders(arguments: argparse.Namespace) -> Tally:
    tally = _pytest("tests/chaos/kv")
    if not tally.failed:
        module = importlib.import_module("tests.chaos.kv.run")
        if arguments.planted:
            _add(tally, module.find_planted(arguments.leaders, arguments.seed, _progress, _say))
            tally.unit = "tests+bugs"
        else:
            _add(tally, module.chaos(arguments.leaders, arguments.seed, _progress, _say))
            tally.unit = "tests+keys"
    return tally


def hostile(_arguments: argparse.Namespace) -> Tally:
    """Sends hostile input to a real process."""
    return _pytest("tests/hostile")


def dashboard(arguments: argparse.Namespace) -> Tally:
    """Tests the dashboard in a browser, with real processes."""
    browser = importlib.import_module("tests.rest.browser")
    if browser.path() is None:
        return Tally("tests", skipped=[browser.missing()])
    if arguments.pictures:
        os.environ["ROLLBOOK_PICTURES"] = os.path.abspath(arguments.pictures)
    return _pytest("tests/dashboard", *arguments.pytest_arguments)


def regressions(arguments: argparse.Namespace) -> Tally:
    """Reports each defect that users found as gone or back, or runs the tests on an older commit."""
    register = importlib.import_module("tests.regressions.defects").Register()
    if arguments.list or arguments.before:
        with contextlib.redirect_stdout(io.StringIO()):  # Hides the list of tests.
            which = ("--collect-only", *arguments.pytest_arguments)
            tally = _pytest("tests/regressions", *which, plugins=[register])
        if arguments.before:
            before = importlib.import_module("tests.regressions.before")
            how = (arguments.before, register, *arguments.pytest_arguments)
            there: Tally = before.run(*how, keeps=arguments.keep)
            return there
        print("\n".join(register.listed()))
        return Tally("defects", passed=len(register.defects), failed=tally.failed)
    tally = _pytest("tests/regressions", *arguments.pytest_arguments, plugins=[register])
    for line in register.lines():
        print(line)
    print(f"{len(register.defects)} defects")
    return tally


def spark(arguments: argparse.Namespace) -> Tally:
    """Tests the data source for Spark, or a query under kills.

    Without a JVM, tests that need one are skipped.
    """
    try:
        importlib.import_module("rollbook.api.spark.requirements").require_libraries()
    except ImportError as error:
        how = "pip install 'rollbook[spark]'"
        return Tally("tests", skipped=[missing_piece("spark", str(error), how)])
    has_kills = arguments.kills or arguments.export_kills
    if has_kills and (reason := importlib.import_module("tests.spark.session").why_not()):
        return Tally("records", skipped=[reason])
    if arguments.export_kills:
        exports = importlib.import_module("tests.spark.export_kills")
        archived: Tally = exports.run(
            arguments.export_kills, arguments.seed, _progress("kills"), _say
        )
        return archived
    if arguments.kills:
        kills = importlib.import_module("tests.spark.kills")
        wanted = arguments.kills, arguments.seed, _progress("kills"), _say
        found: Tally = kills.run(*wanted, arguments.flaw)
        return found
    return _pytest("tests/spark", *arguments.pytest_arguments)


def languages(arguments: argparse.Namespace) -> Tally:
    """Runs the examples in Go, Java and JavaScript with the tools of their languages."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    module = importlib.import_module("tests.languages.run")
    tally: Tally = module.prepare(_say) if arguments.prepare else module.run(_say)
    return tally


def fuzz(arguments: argparse.Namespace) -> Tally:
    module = importlib.import_module("tests.fuzz.run")
    tally: Tally = module.run(arguments.runs, arguments.seed, _progress("inputs"))
    return tally


_KILLS_WITH_BROWSER: Final = 10


def rest(arguments: argparse.Namespace) -> Tally:
    """Sends random requests, generated from OpenAPI, to a real server; or kills servers."""
    if arguments.kills and arguments.of == "cluster":
        operation_kills = importlib.import_module("tests.rest.operation_kills")
        ended: Tally = operation_kills.run(
            arguments.kills, arguments.seed, _progress("kills"), _say
        )
        return ended
    if arguments.kills or arguments.browser:
        if without_curl := _without_curl("records"):
            return without_curl
        kills = importlib.import_module("tests.rest.kills")
        wanted = arguments.kills or _KILLS_WITH_BROWSER, arguments.seed
        found: Tally = kills.run(*wanted, _progress("kills"), _say, with_browser=arguments.browser)
        return found
    of = {
        "logs": ("tests.rest.log_subject", "LogSubject"),
        "cluster": ("tests.rest.cluster_subject", "ClusterSubject"),
    }
    module_name, class_name = of[arguments.of]
    subject = getattr(importlib.import_module(module_name), class_name)()
    if arguments.schemathesis:
        by_others = importlib.import_module("tests.rest.schemathesis_run")
        theirs: Tally = by_others.run(subject, arguments.cases, arguments.seed)
        return theirs
    module = importlib.import_module("tests.rest.run")
    tally: Tally = module.run(subject, arguments.cases, arguments.seed, _progress("requests"), _say)
    return tally


def newcomer(_arguments: argparse.Namespace) -> Tally:
    """Runs the first commands of a new user and prints the time of each block."""
    if without_curl := _without_curl("steps"):
        return without_curl
    module = importlib.import_module("tests.newcomer")
    tally: Tally = module.run(_say)
    return tally


def deploy(arguments: argparse.Namespace) -> Tally:
    """Runs the cluster of `compose/compose.yaml` in a Docker engine."""
    module = importlib.import_module("tests.deploy.run")
    # Leaves all `with` blocks, which stops the engine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if arguments.prepare:
        prepared: Tally = module.prepare(_say)
        return prepared
    parts = module.PARTS if arguments.all else arguments.of
    tally: Tally = module.run(_say, parts, downloads=not arguments.prepared)
    return tally


def _without_curl(unit: str) -> Tally | None:
    return None if curl.is_there() else Tally(unit, skipped=[curl.missing()])


def bench(arguments: argparse.Namespace) -> Tally | None:
    """Prints each figure when it is known, and no log messages below warnings."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    module = importlib.import_module(BENCHES[arguments.name])
    before = _load()
    sizes: dict[str, Any] = {} if arguments.gib is None else {"gib": arguments.gib}
    if arguments.seconds is not None:
        sizes["seconds"] = arguments.seconds
    if arguments.only:
        sizes["only"] = arguments.only
    taken = inspect.signature(module.figures).parameters
    if unknown := [f"--{name}" for name in sizes if name not in taken]:
        sys.exit(f"bench {arguments.name} is measured as a whole: leave {', '.join(unknown)} out")
    figures: list[Figure] = []
    sync_ms = bare_disk.sync_ms()
    # The build of Python changes many figures by a fifth.
    python = f"{platform.python_version()}, {os.path.realpath(sys.executable)}"
    if not arguments.json:
        print(f"bench {arguments.name}: medians of {arguments.runs} runs", flush=True)
        print(
            f"Python {python}; a disk that syncs a bare write of 4 KiB in {sync_ms} ms", flush=True
        )
    for figure in module.figures(arguments.runs, **sizes):
        figures.append(figure)
        if not arguments.json:
            print(_row(figure), flush=True)
    load = [before, _load()]
    if arguments.json:
        rows = [asdict(figure) for figure in figures]
        machine = {"python": python, "sync_ms": sync_ms, "load": load}
        print(json.dumps({"bench": arguments.name, **machine, "figures": rows}))
    else:
        print(f"load average over the last minute: {load[0]:.2f} before, {load[1]:.2f} after")
    if arguments.plot:
        importlib.import_module("tests.bench.plots").plot(figures, arguments.plot)
    if any(figure.holds is False for figure in figures):
        sys.exit(1)
    return None


def _row(figure: Figure) -> str:
    target = "" if figure.target is None else f"target {figure.target:,g}"
    verdict = {None: "", True: "holds", False: "MISSED"}[figure.holds]
    ratio = figure.advantage
    than = "" if ratio is None else f"  {ratio:,.3g} x {figure.rival_name}"
    return (
        f"  {figure.name:<64}  {figure.value:>12,.4g} {figure.unit:<10} {target:<18} {verdict:<6}"
        f"{than}"
    ).rstrip()


# --- Saying things ------------------------------------------------------------------------------


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _add(tally: Tally, other: Tally) -> None:
    tally.passed += other.passed
    tally.failed += other.failed
    tally.skipped = clean([*tally.skipped, *other.skipped])


def _say(text: str) -> None:
    print(text, flush=True)


def _progress(what: str) -> Callable[[int, int], None]:
    """A progress bar on a terminal, or ten lines otherwise."""
    shown = -1

    def report(done: int, total: int) -> None:
        nonlocal shown
        if sys.stdout.isatty():
            print(progress_line(done, total, what), end="\n" if done == total else "", flush=True)
        elif (tenth := 10 * done // max(total, 1)) > shown:
            shown = tenth
            print(f"{what}: {done:,} of {total:,}", flush=True)

    return report

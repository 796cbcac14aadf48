"""The actions of `rollbook spark`."""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

from rollbook.api.cli.context_option import at_context
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import as_table
from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.pipelines import report_page
from rollbook.api.spark.pipelines.connection import Way
from rollbook.api.spark.pipelines.job_report import Report
from rollbook.api.spark.pipelines.log_selection import selection_of
from rollbook.logservice.ids import LogName, parse_cursor_name
from rollbook.logservice.position_syntax import parse_age_us
from rollbook.proto.errors import ArchiveDamaged, BadConfig, RollbookError

_BAR: Final = 30
_LOOK_S: Final = 0.5
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def export_logs(
    access: LogAccess,
    logs: Sequence[str],
    path: str,
    cursor: str,
    every: str | None,
    step_bytes: str,
    **how: Any,
) -> None:
    from rollbook.api.spark.core.options import size_of
    from rollbook.api.spark.pipelines.export import ExportOptions, export

    try:
        step = size_of(step_bytes)
    except ValueError:
        raise BadConfig(f"--step-bytes {step_bytes} is not a size; write 512M or 4G") from None
    every_s = parse_age_us(every) / 1_000_000 if every else 0.0
    wanted = ExportOptions(selection_of(logs), str(parse_cursor_name(cursor)), step)
    way = _way(access)
    with _running("export", access, **how) as (spark, report, bar):
        export(spark, Archive(path), way, wanted, report, bar, every_s)


def audit_logs(
    access: LogAccess,
    logs: Sequence[str],
    path: str | None,
    offline: bool,
    mirror: str | None,
    to_server: str | None,
    to_context: str | None,
    to_token_file: str | None,
    to_tls_authorities: str | None,
    **how: Any,
) -> None:
    from rollbook.api.spark.pipelines.audit import audit, audit_mirror

    if mirror is not None:
        if path is not None or len(logs) != 1 or logs[0].endswith("*"):
            raise BadConfig("--mirror compares exactly two logs, without an archive")
        to = _other_way(access, to_server, to_context, to_token_file, to_tls_authorities)
        names = str(LogName.parse(logs[0])), str(LogName.parse(mirror))
        with _running("audit", access, **how) as (spark, report, bar):
            audit_mirror(spark, _way(access), to, *names, report, bar)
        return
    if offline and path is None:
        raise BadConfig(
            "--offline checks only an archive", next_step="name the archive: --archive DIR"
        )
    selection = selection_of(logs)
    way, archive = None if offline else _way(access), Archive(path) if path else None
    with _running("audit", access, **how) as (spark, report, bar):
        audit(spark, way, archive, selection, report, bar)


def mirror_log(
    access: LogAccess,
    log: str,
    target: str,
    to_server: str | None,
    to_context: str | None,
    to_token_file: str | None,
    to_tls_authorities: str | None,
    checkpoint: str,
    every: str | None,
    **how: Any,
) -> None:
    from rollbook.api.spark.pipelines.mirror import mirror

    to = _other_way(access, to_server, to_context, to_token_file, to_tls_authorities)
    names = str(LogName.parse(log)), str(LogName.parse(target))
    every_s = parse_age_us(every) / 1_000_000 if every else 0.0
    with _running("mirror", access, **how) as (spark, report, bar):
        mirror(spark, _way(access), to, *names, checkpoint, report, bar, every_s)


def restore_log(access: LogAccess, log: str, target: str, path: str, **how: Any) -> None:
    from rollbook.api.spark.pipelines.restore import restore

    names = str(LogName.parse(log)), str(LogName.parse(target))
    with _reporting("restore", access, **how) as (report, bar):
        restore(Archive(path), _way(access), *names, report, bar)


def _other_way(
    access: LogAccess,
    server: str | None,
    context: str | None,
    token_file: str | None,
    authorities: str | None,
) -> Way:
    if server is None and context is None:
        return _way(access)
    there = LogAccess(server or "", token_file, authorities, None, None, access.timeout_s)
    if context is not None:
        there = at_context(there, context, is_named=server is not None)
    return _way(there)


def _way(access: LogAccess) -> Way:
    if access.insecure:
        raise BadConfig(
            "--insecure cannot be used with Spark: every worker would send the token unencrypted",
            next_step="connect to the servers with log+tls://",
        )
    if access.tls_name:
        raise BadConfig(
            "--tls-name cannot be used with Spark: each server's certificate must have that server's name",
            next_step="give the servers certificates with their names, and leave out --tls-name",
        )
    files = {
        "tokenFile": access.token_file,
        "authorities": access.tls_authorities,
        "certificate": access.tls_certificate,
        "key": access.tls_key,
    }
    given = {name: os.path.abspath(path) for name, path in files.items() if path}
    return Way({"endpoint": access.server, **given})


@contextmanager
def _running(
    kind: str, access: LogAccess, master: str | None, report_folder: str, output: str
) -> Iterator[tuple[Any, Report, "_Bar"]]:
    """Yields a Spark session, the report and a progress bar. At the end it stops the session and writes the report."""
    with _reporting(kind, access, report_folder, output) as (report, bar):
        session = _session(kind, master)
        bar.watch(session)
        try:
            yield session, report, bar
        finally:
            bar.close()
            session.stop()


@contextmanager
def _reporting(
    kind: str, access: LogAccess, report_folder: str, output: str
) -> Iterator[tuple[Report, "_Bar"]]:
    """Yields a report and a progress bar. At the end it writes the report, even if the work has failed."""
    report, bar = Report(kind), _Bar(kind)
    try:
        with access.advising():
            yield report, bar
    except BaseException as error:
        report.error = _why(error)
        bar.close()
        # A second error, such as a full disk, must not hide the first one.
        with suppress(RollbookError):
            report_page.write(report, report_folder)
        raise
    bar.close()
    _show(report, report_page.write(report, report_folder), output)
    if report.findings:
        raise ArchiveDamaged(
            f"the report lists {len(report.findings)} problems",
            next_step=f"see {report_folder}/report.html",
        )


def _why(error: BaseException) -> str:
    """Returns the error's text without the Java stack that Spark adds."""
    if isinstance(error, RollbookError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _session(kind: str, master: str | None) -> Any:
    """Returns the Spark session of spark-submit if that started this process, otherwise a new session."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(f"rollbook {kind}")
    if master or not is_submitted:
        builder = builder.master(master or "local[*]")
    if not is_submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise BadConfig(
            f"Spark does not start: {str(error)[:200]}",
            next_step="make sure that Java 17 or newer is on the PATH, or set JAVA_HOME",
        ) from error


def _show(report: Report, page: str, output: str) -> None:
    said = report.packed()
    if output != "table":
        click.echo(json.dumps(said, indent=2 if output == "json" else None))
        return
    rows = said["logs"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        click.echo(as_table(columns, [{name: row.get(name) for name in columns} for row in rows]))
    if said["findings"]:
        click.echo(as_table(report_page.FINDINGS, said["findings"]))
    click.echo(f"report: {page}")


class _Bar:
    """A progress bar on a terminal, which is never part of the output. During a step it shows the progress of
    Spark's tasks.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._is_shown = kind, sys.stderr.isatty()
        self._done = self._total = 0
        self._is_drawn = False
        self._is_over = threading.Event()
        self._drawing = threading.Lock()
        self._watching: threading.Thread | None = None

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._draw("")

    def watch(self, session: Any) -> None:
        """Shows the progress from a separate thread until `close`."""
        if self._is_shown:
            self._watching = threading.Thread(target=self._follow, args=(session,), daemon=True)
            self._watching.start()

    def close(self) -> None:
        """Stops the progress bar. It may be called more than once."""
        self._is_over.set()
        if self._watching is not None:
            self._watching.join()
            self._watching = None
        if self._is_drawn:
            self._is_drawn = False
            click.echo("", err=True)

    def _follow(self, session: Any) -> None:
        tracker = session.sparkContext.statusTracker()
        while not self._is_over.wait(_LOOK_S):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            known = [each for each in stages if each is not None]
            if known:
                done = sum(each.numCompletedTasks for each in known)
                self._draw(f", task {done:,} of {sum(each.numTasks for each in known):,}")

    def _draw(self, tasks: str) -> None:
        if not self._is_shown:
            return
        filled = _BAR * self._done // self._total if self._total else 0
        bar = "#" * filled + "-" * (_BAR - filled)
        text = f"{self._kind} [{bar}] {self._done:,} of {self._total:,} records{tasks}"
        with self._drawing:
            self._is_drawn = True
            click.echo(f"\r{text}\033[K", nl=False, err=True)

"""The commands around a pipeline: reports and the progress bar."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.spark import jobs as spark_work
from rollbook.proto.errors import NoSuchLog

ACCESS = LogAccess("log://none:1", None, None, None, None, 1.0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("An error occurred\n\tat org.apache.spark"), "ValueError: An error occurred"),
        (ValueError(), "ValueError"),
        (SystemExit(1), "SystemExit: 1"),
        (KeyboardInterrupt(), "interrupted"),
        (NoSuchLog("there is no log a"), "there is no log a"),
    ],
)
def test_report_of_a_failed_run_has_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    """Otherwise the report of an earlier run would still say that all is well."""
    ends: list[BaseException | None] = [None, error]

    def restore(*_: Any) -> None:
        if (end := ends.pop(0)) is not None:
            raise end

    monkeypatch.setattr("rollbook.api.spark.pipelines.restore.restore", restore)
    how: dict[str, Any] = {"report_folder": str(tmp_path), "output": "json"}
    spark_work.restore_log(ACCESS, "a", "b", str(tmp_path), **how)
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is True
    with pytest.raises(type(error)):
        spark_work.restore_log(ACCESS, "a", "b", str(tmp_path), **how)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] is False
    assert report["error"].startswith(said)


def test_progress_bar_ends_its_line_only_after_drawing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = spark_work._Bar("restore")
    bar.close()
    assert capsys.readouterr().err == ""
    bar(1, 2)
    bar.close()
    bar.close()
    assert capsys.readouterr().err.endswith("1 of 2 records\x1b[K\n")

"""The data source with stages at which a run of kills can strike, in any process of Spark.

The run writes a file with the stage, the number of the passage and the processes to kill. The first
process that reaches that passage removes the file and kills them, and itself if the file says so.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from rollbook.api.spark import exactly_once_append
from rollbook.api.spark.sink import StreamSink
from rollbook.api.spark.source import RollbookSource
from rollbook.api.spark.stream import StreamReader

FOLDER: Final = "ROLLBOOK_TEST_STRIKES"
FLAW: Final = "ROLLBOOK_TEST_FLAW"
STAGES: Final = (
    "latest offset",
    "partitions",
    "read",
    "source commit",
    "transform",
    "write",
    "commit",
    "between blocks",
    "before the mark",
    "committed",
)


@dataclass(frozen=True)
class Strike:
    stage: str
    passage: int  # 0: the first time that the query reaches the stage.
    pids: Sequence[int]
    is_fatal: bool  # Also kills the process that reaches the stage.

    def arm(self, folder: Path) -> None:
        disarm(folder)
        for each in folder.glob("passage-*"):
            each.unlink()
        (folder / "next").write_text(json.dumps(asdict(self)))
        (folder / "next").rename(folder / "armed")


def disarm(folder: Path) -> None:
    for name in ("armed", "struck"):
        (folder / name).unlink(missing_ok=True)


def has_struck(folder: Path) -> bool:
    return (folder / "struck").exists()


def pass_by(stage: str) -> None:
    folder = Path(os.environ[FOLDER])
    try:
        strike = Strike(**json.loads((folder / "armed").read_text()))
    except FileNotFoundError:
        return
    if strike.stage != stage:
        return
    for number in range(strike.passage + 1):
        try:
            (folder / f"passage-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if number < strike.passage:
            return
    try:
        (folder / "armed").rename(folder / "struck")
    except FileNotFoundError:
        return  # Another process was faster.
    for pid in strike.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if strike.is_fatal:
        os.kill(os.getpid(), signal.SIGKILL)


def seen(value: bytes) -> bytes:
    """Transforms a value, as a stage of the query."""
    pass_by("transform")
    return b"seen " + bytes(value)


class StruckReader(StreamReader):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        pass_by("latest offset")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        found = super().partitions(start, end)
        pass_by("partitions")
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            pass_by("read")

    def commit(self, end: dict[str, Any]) -> None:
        pass_by("source commit")
        super().commit(end)


class StruckSink(StreamSink):
    def write(self, iterator: Iterator[Any]) -> Any:
        message = super().write(iterator)
        pass_by("write")
        return message

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        pass_by("commit")
        super().commit(messages, batchId)
        pass_by("committed")


class StruckSource(RollbookSource):
    @classmethod
    def name(cls) -> str:
        return "struck"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        found = super().streamReader(schema)
        assert isinstance(found, StreamReader)
        return StruckReader(found._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        found = super().streamWriter(schema, overwrite)
        assert isinstance(found, StreamSink)
        return StruckSink(found._options, schema, found._checkpoint)


def _strike_in_appends() -> None:
    append_block, on_whole = (
        exactly_once_append.LogSink._append_block,
        exactly_once_append.LogSink._on_whole,
    )

    def between_blocks(self: Any, *arguments: Any) -> int:
        seq = append_block(self, *arguments)
        pass_by("between blocks")
        return seq

    def before_the_mark(self: Any) -> None:
        pass_by("before the mark")
        on_whole(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(exactly_once_append.LogSink, "_append_block", between_blocks)
    patch.setattr(exactly_once_append.LogSink, "_on_whole", before_the_mark)


if FOLDER in os.environ:
    if os.environ.get(FLAW):
        from tests.spark import flaws

        flaws.plant(os.environ[FLAW])
    _strike_in_appends()

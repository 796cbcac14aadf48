"""Tests the data source over Spark Connect, to be run by hand: `python -m tests.spark.connect`.

It needs `pyspark[connect]`. The server runs in a process of its own, with this package installed.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook.api import spark as rollbook_spark
from tests.regressions import lone_server
from tests.spark import session


def smoke(spark: Any, endpoint: str, folder: Path) -> None:
    """Tests a batch read, a stream, its lag and an error."""
    with rollbook.connect(endpoint) as client:
        log, copy = (client.open(name, create=True) for name in ("here", "there"))
        log.append_many([b"%d" % number for number in range(1000)])
        table = rollbook_spark.read(spark, endpoint=endpoint, log="here")
        assert table.selectExpr("count(*)", "sum(offset)").collect()[0] == (1000, 499_500)
        stream = rollbook_spark.read_stream(
            spark,
            endpoint=endpoint,
            log="here",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=400,
        )
        query = (
            stream.select("value")
            .writeStream.format("rollbook")
            .options(endpoint=endpoint, log="there", checkpointLocation=str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert [record.value for record in copy.read()] == [record.value for record in log.read()]
        assert rollbook_spark.lag(query) == rollbook_spark.Lag(0, {"default/here": 0})
        with pytest.raises(Exception, match="option colums='value' is unknown"):
            rollbook_spark.read(spark, endpoint=endpoint, log="here", colums="value").collect()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb-connect-") as name:
        folder = Path(name)
        session.prepare_environment(folder)
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote("local[2]")
        for setting, value in session.SETTINGS.items():
            builder = builder.config(setting, value)
        spark = builder.getOrCreate()
        (folder / "site").mkdir()
        try:
            with lone_server.running(folder / "site") as site:
                smoke(spark, site.url, folder)
        finally:
            spark.stop()
    print("batch, stream, lag and an error: 1 passed, 0 failed")


if __name__ == "__main__":
    main()

"""Visits of each user, from clicks in one log into another one, each exactly once.

    python examples/spark/sessions.py log://127.0.0.1:7400 clicks sessions checkpoint

A click has its user as the key, and the time at which it happened as its event time. A session ends when its user has not
clicked for 5 minutes; it is written once no click can be late for it, which the watermark says. Run it again: it goes on
where it ended.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, session_window, struct, to_json

import rollbook.spark


def sessions(spark: Any, endpoint: str, clicks: str) -> Any:
    stream = rollbook.spark.read_stream(
        spark,
        endpoint=endpoint,
        log=clicks,
        columns="key,event_time",
        startingOffsets="earliest",
    )
    visits = (
        stream.withWatermark("event_time", "10 minutes")
        .groupBy("key", session_window("event_time", "5 minutes").alias("visit"))
        .agg(count("*").alias("clicks"))
    )
    shown = struct(col("visit.start"), col("visit.end"), col("clicks"))
    return visits.select("key", to_json(shown).alias("value"))


def run(spark: Any, endpoint: str, clicks: str, to: str, checkpoint: str) -> None:
    """Everything that is there now. Rows come out of a shuffle: `rowOrder` gives them one order."""
    query = (
        sessions(spark, endpoint, clicks)
        .writeStream.format("rollbook")
        .options(endpoint=endpoint, log=to, rowOrder="bytes", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    run(session, *sys.argv[1:])

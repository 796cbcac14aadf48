"""The latest record of each key, as a table: `python examples/spark/latest_by_key.py log://127.0.0.1:7400 prices`.

Offsets say which record of a log is the later one; a key is always in one log.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, max_by

import rollbook.spark


def latest(spark: Any, endpoint: str, log: str) -> Any:
    records = rollbook.spark.read(spark, endpoint=endpoint, log=log, columns="offset,key,value")
    keyed = records.where("key is not null").groupBy("key")
    found = keyed.agg(max_by("value", "offset").alias("value"))
    return found.select(col("key").cast("string"), col("value").cast("string")).orderBy("key")


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    latest(session, *sys.argv[1:]).show()

"""How often each word is in a log: `python examples/spark/word_count.py log://127.0.0.1:7400 lines`."""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, explode, split

import rollbook.spark


def counts(spark: Any, endpoint: str, log: str) -> Any:
    """The most frequent words first. The log is read as it is now; only values are asked for."""
    lines = rollbook.spark.read(spark, endpoint=endpoint, log=log, columns="value")
    words = lines.select(explode(split(col("value").cast("string"), r"\s+")).alias("word"))
    return words.where("word != ''").groupBy("word").count().orderBy(col("count").desc(), "word")


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    counts(session, *sys.argv[1:]).show()

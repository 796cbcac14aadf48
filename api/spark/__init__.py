"""The data source `rollbook`, which shows logs as tables and streams of Spark.

    from rollbook import spark as rollbook_spark

    rollbook_spark.register(spark)
    orders = spark.read.format("rollbook").options(endpoint="log://127.0.0.1:7400", log="orders").load()

See DESIGN.md of `rollbook.api` and docs/spark.md for more.
"""

from rollbook.api.spark.requirements import require_libraries

require_libraries()

from rollbook.api.spark.lag import Lag, RollbookListener, lag  # noqa: E402
from rollbook.api.spark.session_functions import read, read_stream, register  # noqa: E402

__all__ = ["Lag", "RollbookListener", "lag", "read", "read_stream", "register"]

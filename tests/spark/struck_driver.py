"""A driver that a run of kills starts, orders to run a query, kills, and starts again: `python -m tests.spark.struck_driver`.

Its one argument is a folder. It says `ready PID`, the JVM's; each line that it is sent is the options of one run of the
query over what is there now, and is answered with `done`, or `failed` and why.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.spark import session
from tests.spark.struck import StruckSource, seen


def run(spark: Any, endpoint: str, folder: str, **options: str) -> None:
    """From the source logs through the transformation into the target."""
    from pyspark.sql.functions import udf

    stream = spark.readStream.format("struck").options(endpoint=endpoint, **options).load()
    marked = udf(seen, "binary", useArrow=False)
    rows = stream.select("key", marked("value").alias("value"))
    sink = rows.writeStream.format("struck").options(
        endpoint=endpoint, log="kills/target", checkpointLocation=f"{folder}/checkpoint"
    )
    query = sink.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def main() -> None:
    folder = Path(sys.argv[1])
    with session.running(folder) as spark:
        spark.dataSource.register(StruckSource)
        print("ready", spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
        for line in sys.stdin:
            try:
                run(spark, **json.loads(line))
            except Exception as error:  # noqa: BLE001  # The run of kills is to hear of it.
                print("failed", json.dumps(str(error)[-2000:]), flush=True)
            else:
                print("done", flush=True)


if __name__ == "__main__":
    main()

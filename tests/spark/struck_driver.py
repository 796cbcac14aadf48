"""The driver that a run of kills starts and kills: `python -m tests.spark.struck_driver FOLDER`.

It prints `ready` and the PID of the JVM. Each line of its input has the options of one run of the
query over the records available now. It responds with `done`, or with `failed` and the reason.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.spark import session
from tests.spark.struck import StruckSource, seen


def run(spark: Any, endpoint: str, folder: str, **options: str) -> None:
    """Copies the source logs through the transformation into the target log."""
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
            except Exception as error:  # noqa: BLE001  # Reported to the run of kills.
                print("failed", json.dumps(str(error)[-2000:]), flush=True)
            else:
                print("done", flush=True)


if __name__ == "__main__":
    main()

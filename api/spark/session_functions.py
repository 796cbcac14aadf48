"""The functions that use a program's SparkSession."""

from typing import Any

from rollbook.api.spark.source import RollbookSource


def register(spark: Any) -> None:
    """Makes `format("rollbook")` and `USING rollbook` work in this session."""
    spark.dataSource.register(RollbookSource)


def read(spark: Any, *, archive: Any = None, **options: Any) -> Any:
    """Returns a DataFrame with the present records of logs. The options are those of `format("rollbook")`.

    `archive` is a folder that `rollbook spark export` wrote: the table then has archived and live records,
    each once.
    """
    register(spark)
    if archive is not None:
        from rollbook.api.spark.archive_and_log_table import table

        return table(spark, str(archive), _texts(options))
    return spark.read.format("rollbook").options(**_texts(options)).load()


def read_stream(spark: Any, **options: Any) -> Any:
    """Returns a streaming DataFrame of the records of logs. By default it starts at their tails."""
    register(spark)
    return spark.readStream.format("rollbook").options(**_texts(options)).load()


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }

"""The Java pieces: Apache BookKeeper from Maven Central, and the puppet that is built against it."""

from pathlib import Path
from typing import Final

from tests.support.java import JavaProject

_FOLDER: Final = Path(__file__).parent / "java"

PROJECT: Final = JavaProject(
    _FOLDER,
    (
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # For many short-lived processes.
        "-Dio.netty.leakDetectionLevel=disabled",
        f"-Dlog4j2.configurationFile={_FOLDER / 'logging.xml'}",
    ),
    downloads_mb=60,
)


def command(main_class: str, *arguments: str | Path, log_level: str = "warn") -> list[str]:
    """The command that runs a class of the puppet or of BookKeeper; it logs to standard error."""
    return PROJECT.command(main_class, *arguments, options=[f"-Dinterop.level={log_level}"])

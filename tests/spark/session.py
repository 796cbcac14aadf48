"""One SparkSession for all tests, which starts and runs fast on two cores.

Workers import pyspark from a folder, since Spark's zip has no compiled Python. The JVM uses its
quick compiler, sockets are local, and checkpoints are plain files.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rollbook.api.spark.requirements import require_libraries
from tests.support.processes import REPOSITORY
from tests.tally import missing_piece

PIECE: Final = "spark"
JAVA_MIN: Final = 17
_HOW: Final = "apt-get install openjdk-17-jre-headless, and pip install 'rollbook[spark]'"
_LINKED: Final = ("jars", "bin", "sbin", "data", "examples", "licenses")
_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _MANAGER,
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
}


def why_not() -> str:
    """Returns why a session is impossible here, or an empty string; raises if one is required."""
    java = shutil.which("java")
    if java is None:
        return missing_piece(PIECE, "there is no Java, which Spark runs on", _HOW)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        return missing_piece(PIECE, f"Java is older than {JAVA_MIN}: {said[:80]}", _HOW)
    try:
        require_libraries()
    except ImportError as error:
        return missing_piece(PIECE, str(error), _HOW)
    return ""


def prepare_environment(folder: Path) -> None:
    """Sets the environment that the JVM and its workers inherit; call it before using pyspark."""
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = folder / "home"
    (home / "python" / "lib" / "pyspark.zip").mkdir(parents=True)
    for name in _LINKED:
        if (installed / name).exists():
            (home / name).symlink_to(installed / name)
    (home / "python" / "lib" / "pyspark.zip" / "pyspark").symlink_to(installed)
    (home / "python" / "pyspark").symlink_to(installed / "python" / "pyspark")
    for archive in (installed / "python" / "lib").glob("py4j-*.zip"):
        (home / "python" / "lib" / archive.name).symlink_to(archive)
    paths = [str(REPOSITORY / ".import-root"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Any]:
    """Runs a session; a process can have only one at a time."""
    prepare_environment(folder)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,2]").appName("rollbook tests")
    places = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in {**SETTINGS, **places, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()

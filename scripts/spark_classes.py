"""Write the classes that Spark loads at each start into an archive (class data sharing), which the
Java processes of the tests map instead of reading and verifying them: half the CPU of a start.

    python scripts/spark_classes.py

The archive belongs to the installed pyspark and Java, and is made again when one of them changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE: Final = ROOT / ".cache" / "spark-classes.jsa"
MADE_WITH: Final = ARCHIVE.with_suffix(".txt")
"""What the archive belongs to."""

JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No Java process of the tests lives for long: what the second compiler does costs more than it
saves. An archive is of one collector of garbage.
"""


def jvm_options() -> str:
    """For SPARK_SUBMIT_OPTS: with the archive, if there is one. Java goes without one that does not
    fit, and would print a line about it.
    """
    if not ARCHIVE.exists():
        return JVM_OPTIONS
    return f"{JVM_OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def installed() -> str:
    """The versions of Java and pyspark, and where pyspark is."""
    import pyspark

    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return f"{java}{pyspark.__version__}\n{pyspark.__file__}\n"


def use(spark: SparkSession, folder: Path) -> None:
    """What most jobs do: a shuffle, files, a query with batches, and a function in Python."""
    from pyspark.sql import functions

    rows = spark.range(100).selectExpr("id % 7 as key", "cast(id as string) as value")
    rows.groupBy("key").count().collect()
    rows.write.parquet(str(folder / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(folder / "rows"))
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: batch.collect())
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows.select(functions.udf(str.upper)("value")).collect()


def main() -> int:
    if MADE_WITH.exists() and ARCHIVE.exists() and MADE_WITH.read_text() == installed():
        return 0
    from pyspark import SparkContext

    from spark_jobs.session import open_session

    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={ARCHIVE}"
    with tempfile.TemporaryDirectory() as folder:
        with open_session("classes", {"spark.master": "local[2]"}) as spark:
            use(spark, Path(folder))
        gateway = SparkContext._gateway
        assert gateway is not None
        # Java writes the archive when it ends by itself; pyspark would leave it behind.
        java = gateway.proc
        java.stdin.close()
        java.wait(120)
    if not ARCHIVE.exists():
        print("spark_classes: Java wrote no archive; the tests go without", file=sys.stderr)
        return 0
    MADE_WITH.write_text(installed())
    return 0


if __name__ == "__main__":
    sys.exit(main())

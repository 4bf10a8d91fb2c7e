"""The Spark session of a job, with the Kafka connector that belongs to the installed pyspark."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


class JobError(Exception):
    """A problem that the user can fix, reported in one line; exit code 1."""


def connector_package() -> str:
    """Maven coordinate of spark-sql-kafka for the installed pyspark: same Spark version, same Scala
    version.

    The Scala version is read off the name of the spark-core jar that pyspark ships. Raises JobError
    without pyspark.
    """
    try:
        import pyspark
    except ImportError as error:
        raise JobError("pyspark is not installed: pip install 'kbroker[spark]'") from error
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    for jar in sorted(jars.glob("spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_(\d+\.\d+)-(.+)\.jar", jar.name)
        if match:
            scala_version, spark_version = match.groups()
            return f"org.apache.spark:spark-sql-kafka-0-10_{scala_version}:{spark_version}"
    raise JobError(f"no spark-core jar in {jars}: this pyspark is incomplete; reinstall it")


def started_by_spark_submit() -> bool:
    """Whether a JVM that spark-submit started is already waiting for us (its packages are then
    fixed).
    """
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def open_session(application_name: str) -> Iterator[SparkSession]:
    """A session that can read Kafka; it ends with the block.

    Under spark-submit its own --master, --packages and --conf hold. Else a local session is made,
    and the connector is resolved through spark.jars.packages. Raises JobError where the connector
    can't be found.
    """
    if started_by_spark_submit():
        with _without_artifacts(Path.cwd()):
            spark = _session(application_name)
            try:
                yield spark
            finally:
                spark.stop()
        return
    folder = tempfile.mkdtemp(prefix="spark-jobs-")
    try:
        with _started_in(folder) as log:
            try:
                spark = _session(application_name)
            except JobError as error:
                raise JobError(f"{error}{_reason(log.read_text(errors='replace'))}") from error
        try:
            yield spark
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started_in(folder: str) -> Iterator[Path]:
    """A Java process that is started in the block has that working directory, where Spark 4.0.0
    makes its `artifacts`, and writes what it logs into a file there: some 70 lines at each start.
    With SPARK_JOBS_TRACE or SPARK_LOG_LEVEL set they go to standard error. Gives the file.
    """
    log = Path(folder) / "java.log"
    log.touch()
    here = Path.cwd()
    is_shown = {"SPARK_JOBS_TRACE", "SPARK_LOG_LEVEL"} & os.environ.keys()
    sys.stderr.flush()
    standard_error = os.dup(2)
    os.chdir(folder)
    try:
        if not is_shown:
            with log.open("ab") as stream:
                os.dup2(stream.fileno(), 2)
        yield log
    finally:
        sys.stderr.flush()
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.chdir(here)


@contextmanager
def _without_artifacts(folder: Path) -> Iterator[None]:
    """Remove the `artifacts` that Spark 4.0.0 makes in the working directory of a Java process that
    was started by spark-submit; what was in such a folder before stays.
    """
    artifacts = folder / "artifacts"
    before = set(artifacts.iterdir()) if artifacts.is_dir() else None
    try:
        yield
    finally:
        if artifacts.is_dir():
            for path in set(artifacts.glob("spark-*")) - (before or set()):
                shutil.rmtree(path, ignore_errors=True)
            if before is None:
                with suppress(OSError):  # something else is in it
                    artifacts.rmdir()


_REASONS = (
    re.compile(r"unresolved dependency: ([^\s:]+: .*)"),
    re.compile(r'Exception in thread "main" (.*)'),
    re.compile(r"^Error: (.*)", re.MULTILINE),
)


def _reason(log: str) -> str:
    """`: why` out of what Java printed before it ended; empty if nothing there tells."""
    for pattern in _REASONS:
        match = pattern.search(log)
        if match:
            return f": {match[1].strip()[:300]}"
    return ""


def _session(application_name: str) -> SparkSession:
    package = connector_package()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(application_name)
    if not started_by_spark_submit():
        builder = (
            builder.master(os.environ.get("SPARK_MASTER", "local[*]"))
            .config("spark.jars.packages", _with_user_packages(package))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # py4j and Java errors have no common base but Exception
        first = str(error).strip().splitlines()[0].rstrip(".")
        raise JobError(f"Spark did not start: {first}") from error
    spark.sparkContext.setLogLevel(os.environ.get("SPARK_LOG_LEVEL", "ERROR"))
    if not _has_kafka_source(spark):
        spark.stop()
        raise JobError(
            f"the Kafka source is not on the class path: spark-submit --packages {package} ..."
        )
    return spark


def has_files(spark: SparkSession, path: str) -> bool:
    """Whether a folder of any file system that Spark knows is there with anything in it."""
    jvm = spark.sparkContext._jvm
    if jvm is None:
        return False
    folder = jvm.org.apache.hadoop.fs.Path(path)
    file_system = folder.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return bool(file_system.exists(folder) and len(file_system.listStatus(folder)))


def _with_user_packages(package: str) -> str:
    """The connector and what SPARK_PACKAGES (comma separated coordinates) adds to it."""
    return ",".join(filter(None, [package, os.environ.get("SPARK_PACKAGES", "")]))


def _has_kafka_source(spark: SparkSession) -> bool:
    # Asked of the JVM and not of a failed read: the message of that one is a page long.
    jvm = spark.sparkContext._jvm
    if jvm is None:
        return True  # Spark Connect: the server's class path can't be seen from here
    from py4j.protocol import Py4JJavaError

    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(_KAFKA_SOURCE_CLASS, False, loader)
    except Py4JJavaError:  # ClassNotFoundException
        return False
    return True

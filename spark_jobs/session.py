"""The Spark session of a job, with the Kafka connector that belongs to the installed pyspark."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA_SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


class JobError(Exception):
    """A problem the user can mend, told in one line; exit code 1."""


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


def open_session(application_name: str) -> SparkSession:
    """A session that can read Kafka.

    Under spark-submit its own --master, --packages and --conf hold. Else a local session is made,
    and the connector is resolved through spark.jars.packages. Raises JobError where the connector
    can't be found.
    """
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
        raise JobError(f"Spark did not start: {str(error).strip().splitlines()[0]}") from error
    spark.sparkContext.setLogLevel(os.environ.get("SPARK_LOG_LEVEL", "ERROR"))
    if not _has_kafka_source(spark):
        spark.stop()
        raise JobError(
            f"the Kafka source is not on the class path: spark-submit --packages {package} ..."
        )
    return spark


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

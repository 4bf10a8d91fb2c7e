"""Which packages and options the installed pyspark needs for Kafka."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .errors import JobError
from .lake.formats import PACKAGES, LakeFormat, with_lake

OPTIONS: Final = {"spark.sql.session.timeZone": "UTC"}
"""Options that the jobs' own sessions have beside Spark's defaults."""


def connector_package() -> str:
    """Maven coordinate of spark-sql-kafka for the installed pyspark: same Spark version, same Scala
    version.

    The Scala version is read off the name of the spark-core jar that pyspark ships. Raises JobError
    without pyspark.
    """
    jars = spark_home() / "jars"
    for jar in sorted(jars.glob("spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_(\d+\.\d+)-(.+)\.jar", jar.name)
        if match:
            scala_version, spark_version = match.groups()
            return f"org.apache.spark:spark-sql-kafka-0-10_{scala_version}:{spark_version}"
    raise JobError(f"no spark-core jar in {jars}: this pyspark is incomplete; reinstall it")


def spark_home() -> Path:
    """The folder of the Spark that pyspark starts. Raises JobError without pyspark."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JobError("pyspark is not installed: install kbroker with its extra spark")
    return Path(spec.origin).parent


def settings(*formats: LakeFormat) -> dict[str, str]:
    """Settings by name, for jobs that write tables of these formats."""
    return with_lake({PACKAGES: connector_package(), **OPTIONS}, *formats)


def properties(settings: Mapping[str, str]) -> str:
    """Lines for spark-defaults.conf."""
    return "\n".join(f"{name} {value}" for name, value in settings.items())


def submit_arguments(settings: Mapping[str, str]) -> str:
    """The same as arguments of spark-submit."""
    options = " ".join(
        f"--conf {name}={value}" for name, value in settings.items() if name != PACKAGES
    )
    return f"--packages {settings[PACKAGES]} {options}"

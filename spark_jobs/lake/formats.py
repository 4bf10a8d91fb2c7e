"""The packages of Delta Lake and Iceberg, and the settings that a session with them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = "spark.jars.packages"
EXTENSIONS: Final = "spark.sql.extensions"


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """A format of tables. package: Maven coordinate, for Spark 4.0. extension: adds its SQL.
    settings: what else a session needs.
    """

    name: str
    title: str
    package: str
    extension: str
    settings: Mapping[str, str] = field(default_factory=dict)


DELTA: Final = LakeFormat(
    "delta",
    "Delta Lake",
    "io.delta:delta-spark_2.13:4.0.0",
    "io.delta.sql.DeltaSparkSessionExtension",
    {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
)
ICEBERG: Final = LakeFormat(
    "iceberg",
    "Iceberg",
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
FORMATS: Final[Mapping[str, LakeFormat]] = {each.name: each for each in (DELTA, ICEBERG)}


def with_lake(settings: Mapping[str, str], *formats: LakeFormat) -> dict[str, str]:
    """Settings of a session, with those of the formats. What was given stays: packages and
    extensions are added to it.
    """
    found = dict(settings)
    for each in formats:
        for name, value in ((PACKAGES, each.package), (EXTENSIONS, each.extension)):
            known = [part for part in found.get(name, "").split(",") if part]
            found[name] = ",".join(known if value in known else [*known, value])
        found = {**each.settings, **found}
    return found


def check_format(spark: SparkSession, format_: LakeFormat) -> None:
    """Raises JobError unless the session has the format's package and SQL."""
    wanted = {EXTENSIONS: format_.extension, **format_.settings}
    missing = [
        name for name, value in wanted.items() if value not in str(spark.conf.get(name, None))
    ]
    if missing:
        raise JobError(
            f"the session cannot write {format_.title}: give it "
            f"spark.jars.packages={format_.package}"
            + "".join(f" and {name}={wanted[name]}" for name in missing)
            + " (`spark-conf --format` prints them)"
        )

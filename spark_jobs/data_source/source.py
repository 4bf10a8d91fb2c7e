"""The data source `kbroker`, in Python only: no connector has to be fetched.

register(spark)
frame = spark.read.format("kbroker").option("kafka.bootstrap.servers", "localhost:9092")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSource

from ..connect import Portable, data_source_class
from ..errors import JobError
from ..options import parse_boolean
from ..session import ship
from .options import source_options
from .readers import KafkaReader, KafkaStreamReader
from .records import HEADERS_SCHEMA, SCHEMA
from .sink_options import sink_options
from .writers import KafkaStreamWriter, KafkaWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "kbroker"
Made = TypeVar("Made", bound=Portable)


class KafkaDataSource(Portable, DataSource):
    """See `options` for its options."""

    @classmethod
    def name(cls) -> str:
        """Of `.format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """That of Spark's Kafka source."""
        has_headers = parse_boolean(self.options.get("includeHeaders", "false"))
        return f"{SCHEMA}, {HEADERS_SCHEMA}" if has_headers else SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        """Of `spark.read`. Raises JobError."""
        return self._sent(KafkaReader(source_options(self.options, is_stream=False)))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        """Of `spark.readStream`. Raises JobError."""
        return self._sent(KafkaStreamReader(source_options(self.options, is_stream=True)))

    def writer(self, schema: StructType, overwrite: bool) -> KafkaWriter:
        """Of `frame.write`. Raises JobError."""
        if overwrite:
            raise JobError("a topic cannot be overwritten: mode('append') adds to it")
        return self._sent(KafkaWriter(sink_options(self.options, is_stream=False), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Of `writeStream`. Raises JobError."""
        if overwrite:
            raise JobError("a topic cannot be overwritten: outputMode('append') or 'update'")
        return self._sent(KafkaStreamWriter(sink_options(self.options, is_stream=True), schema))

    def _sent(self, made: Made) -> Made:
        """What Spark sends on to other processes."""
        made.bundle = self.bundle
        return made


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and send this package to the executors."""
    ship(spark)
    spark.dataSource.register(data_source_class(spark, KafkaDataSource))

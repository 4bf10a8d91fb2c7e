"""What a session of Spark Connect sees, as a user asks for it; printed as JSON.

    python -m tests.spark.connected_frames REMOTE table FORMAT PATH
    python -m tests.spark.connected_frames REMOTE format BOOTSTRAP TOPIC TARGET CHECKPOINT

table: the number of rows. format: the format `kbroker` copies TOPIC to TARGET, as a batch, and from
then on as a stream; the number of rows that it reads of TARGET behind either.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from spark_jobs.data_source.source import register
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE = "tests.spark.connected_frames"


def rows_of_table(spark: SparkSession, format_: str, path: str) -> int:
    return spark.read.format(format_).load(path).count()


def copied(
    spark: SparkSession, bootstrap: str, topic: str, target: str, checkpoint: str
) -> list[int]:
    register(spark)
    address = {"kafka.bootstrap.servers": bootstrap}
    read = address | {"subscribe": topic, "startingOffsets": "earliest"}
    seen = spark.read.format("kbroker").options(**address, subscribe=target)

    batch = spark.read.format("kbroker").options(**read).load().select("key", "value", "partition")
    batch.write.format("kbroker").mode("append").options(
        **address, topic=target, queryName=f"{target}-batch"
    ).save()
    counts = [seen.load().count()]

    stream = spark.readStream.format("kbroker").options(**read).load()
    writer = stream.select("key", "value", "partition").writeStream.format("kbroker")
    writer = writer.options(**address, topic=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return [*counts, seen.load().count()]


def main(remote: str, what: str, *arguments: str) -> None:
    with open_session("connected", {"spark.remote": remote}) as spark:
        found = rows_of_table if what == "table" else copied
        print(json.dumps(found(spark, *arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])

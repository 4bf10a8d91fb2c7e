"""A query in a session of Spark Connect, as a user writes it: its rows go through `kafka_sink`, and
a group follows it.

    python -m tests.spark.connected_query REMOTE BOOTSTRAP TOPIC TARGET CHECKPOINT GROUP

Reads TOPIC to its end in batches of at most 50 records.
"""

from __future__ import annotations

import sys

from spark_jobs.connect import batch_function
from spark_jobs.exactly_once.sink import kafka_sink
from spark_jobs.exactly_once.source_offsets import CheckpointOffsets
from spark_jobs.lag.group_offsets import GroupOffsets
from spark_jobs.session import open_session, ship

MODULE = "tests.spark.connected_query"


def main(remote: str, bootstrap: str, topic: str, target: str, checkpoint: str, group: str) -> None:
    settings = {"spark.remote": remote}
    with open_session("connected", settings) as spark, GroupOffsets(group, bootstrap) as offsets:
        ship(spark)
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.options(subscribe=topic, startingOffsets="earliest")
        rows = source.option("maxOffsetsPerTrigger", 50).load().select("key", "value", "partition")
        sink = kafka_sink(
            bootstrap,
            query_name=target,
            topic=target,
            arrangement="keep",
            end_offsets=CheckpointOffsets(checkpoint),
        )
        writer = rows.writeStream.foreachBatch(batch_function(spark, sink))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        offsets.follow(spark, query)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

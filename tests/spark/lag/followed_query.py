"""A query that a group follows, in a process of its own, which test_kills kills.

    python -m tests.spark.lag.followed_query BOOTSTRAP TOPIC CHECKPOINT GROUP

Reads TOPIC to its end in batches of at most 20 records.
"""

from __future__ import annotations

import sys

from spark_jobs.lag.group_offsets import GroupOffsets
from spark_jobs.session import open_session

MODULE = "tests.spark.lag.followed_query"


def main(bootstrap: str, topic: str, checkpoint: str, group: str) -> None:
    settings = {"spark.master": "local[1]"}
    with open_session("followed", settings) as spark, GroupOffsets(group, bootstrap) as offsets:
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 20)
            .load()
        )
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        offsets.follow(spark, query)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

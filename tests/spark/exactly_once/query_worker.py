"""A query with the sink in a process of its own, which test_query_kills kills.

    python -m tests.spark.exactly_once.query_worker BOOTSTRAP SOURCE TARGET CHECKPOINT [FLAG]

Mirrors SOURCE to TARGET until it is at the end, in batches of at most 300 rows, and prints the
attempts of each batch as JSON. FLAG: a file; while it does not exist, the first task that has
written some rows makes it and kills the Python worker that gives it rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.client.cluster import LATEST_TIMESTAMP
from kbroker.model import TopicPartition
from spark_jobs.arrow_map import map_in_arrow
from spark_jobs.exactly_once.sink import kafka_sink
from spark_jobs.session import open_session
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.offsets import list_offset
from tests.clients.adapters import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODULE = "tests.spark.exactly_once.query_worker"
ROWS_PER_BATCH = 300
ROW_BYTES = 20_000
"""A task writes several batches of 512 KiB."""


class KillOnce:
    """Passes record batches on; kills its process behind most of the rows of one task, once some of
    them are in the target.
    """

    def __init__(self, flag: str, bootstrap: str, target: str) -> None:
        self.flag = flag
        self.bootstrap = bootstrap
        self.target = target

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen > 80 and not Path(self.flag).exists():
                self._wait_for_rows(batch.column("partition")[0].as_py())
                Path(self.flag).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def _wait_for_rows(self, partition: int) -> None:
        client = BlockingClient(ClusterAddress(self.bootstrap))
        place = TopicPartition(self.target, partition)
        wait_until(lambda: list_offset(client, place, LATEST_TIMESTAMP) > 0, 60, "rows written")


def main(bootstrap: str, source: str, target: str, checkpoint: str, flag: str = "") -> None:
    settings = {
        "spark.master": "local[2,4]",  # four attempts of a task
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }
    attempts: dict[int, int] = {}
    with open_session("kills", settings) as spark:
        frame: DataFrame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
            .load()
        )
        if flag:
            frame = map_in_arrow(frame, KillOnce(flag, bootstrap, target), frame.schema)
        sink = kafka_sink(bootstrap, topic=target, query_name=target, arrangement="keep")

        def write(rows: DataFrame, batch_id: int) -> None:
            sink(rows, batch_id)
            assert sink.last_batch is not None
            attempts[batch_id] = sink.last_batch.attempts

        query = (
            frame.writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(json.dumps(attempts))


if __name__ == "__main__":
    main(*sys.argv[1:])

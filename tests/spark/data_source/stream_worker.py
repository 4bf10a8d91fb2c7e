"""A stream that writes to the format `kbroker`, in a process of its own that test_kills kills.

    python -m tests.spark.data_source.stream_worker BOOTSTRAP SOURCE TARGET CHECKPOINT [OPTIONS]

Writes what SOURCE has to TARGET until it is at the end, and reports its batches as
`--progress json` does. OPTIONS: of jobs, of which it reads `--maxOffsetsPerTrigger`.
"""

from __future__ import annotations

import sys
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException

from spark_jobs.data_source.source import register
from spark_jobs.errors import first_cause
from spark_jobs.progress import Progress, Reporter, listen
from spark_jobs.session import open_session

MODULE: Final = "tests.spark.data_source.stream_worker"
NAME: Final = "writes"


def main(bootstrap: str, source: str, target: str, checkpoint: str, *options: str) -> int:
    batch_rows = options[options.index("--maxOffsetsPerTrigger") + 1]
    with open_session(NAME, {"spark.master": "local[2,4]"}) as spark:
        register(spark)
        progress = Progress(NAME, Reporter("json"))
        listener = listen(spark, progress, query_name=NAME)
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("maxOffsetsPerTrigger", batch_rows)
            .load()
        )
        rows = frame.select("key", "value", "headers", "partition", "timestamp")
        writer = rows.writeStream.queryName(NAME).format("kbroker")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        try:
            writer.start().awaitTermination()
        except (StreamingQueryException, Py4JError) as error:
            print(first_cause(error), file=sys.stderr)
            return 1
        progress.wait()
        spark.streams.removeListener(listener)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

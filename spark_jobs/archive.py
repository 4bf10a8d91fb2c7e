"""`archive`: topics to Parquet files, every record exactly once.

Each record becomes a row of key, value, headers, topic, partition, offset, timestamp; bytes stay
bytes. Exactly once comes from Spark's checkpoint (which offsets belong to which batch) and its file
sink (a batch's files count only once they are named in `_spark_metadata`): a job that is killed and
started again with the same --checkpoint goes on where it was. Read the output with Spark, which
honours `_spark_metadata`; another reader may also see files of a batch that was cut off and written
again.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_jobs.checks import (
    check_cluster,
    check_pair,
    check_writable,
    has_local_files,
    is_local,
)
from spark_jobs.session import JobError, has_files, open_session, started_by_spark_submit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader, StreamingQuery

COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
"""The rows' columns: binary, binary, array<struct<key string, value binary>>, string, int, long,
timestamp.
"""

EXAMPLES = """
examples:
  everything there is now, then stop:
    python -m spark_jobs archive --topics orders,payments --output archive/
  keep going, a batch every minute:
    python -m spark_jobs archive --topics orders --output archive/ --every '1 minute'
  on a cluster:
    spark-submit --packages "$(python -m spark_jobs packages)" \\
      spark_jobs/__main__.py archive --bootstrap-servers kafka:9092 --topics orders ...
  with SASL:
    ... --kafka-option kafka.security.protocol=SASL_SSL \\
      --kafka-option kafka.sasl.mechanism=SCRAM-SHA-512 ...
"""


@dataclass(frozen=True)
class ArchiveOptions:
    """The job's source, target and schedule. starting_timestamp_ms wins over starting_offsets."""

    bootstrap_servers: str
    output: str
    checkpoint: str
    topics: str | None = None
    topics_pattern: str | None = None
    starting_offsets: str = "earliest"
    starting_timestamp_ms: int | None = None
    every: str | None = None
    max_offsets_per_trigger: int | None = None
    partition_by: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    kafka_options: dict[str, str] = field(default_factory=dict)


def read_topics(spark: SparkSession, options: ArchiveOptions) -> DataFrame:
    """The topics as an unbounded table with COLUMNS."""
    reader: DataStreamReader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("includeHeaders", "true")
        .option("failOnDataLoss", str(options.fail_on_data_loss).lower())
    )
    if options.topics is not None:
        reader = reader.option("subscribe", options.topics)
    elif options.topics_pattern is not None:
        reader = reader.option("subscribePattern", options.topics_pattern)
    if options.starting_timestamp_ms is not None:
        reader = reader.option("startingTimestamp", str(options.starting_timestamp_ms))
    else:
        reader = reader.option("startingOffsets", options.starting_offsets)
    if options.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(options.max_offsets_per_trigger))
    for name, value in options.kafka_options.items():
        reader = reader.option(name, value)
    return reader.load().select(*COLUMNS)


def start_archive(spark: SparkSession, options: ArchiveOptions) -> StreamingQuery:
    """Start the query. Without `every` it archives the records that exist now and ends."""
    writer = (
        read_topics(spark, options)
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", options.output)
        .option("checkpointLocation", options.checkpoint)
    )
    if options.partition_by:
        writer = writer.partitionBy(*options.partition_by)
    if options.every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=options.every)
    return writer.start()


def summary(query: StreamingQuery) -> dict[str, object]:
    """Rows and batches of this run, and the offsets (exclusive) the archive has reached, per topic
    and partition.
    """
    progress = [json.loads(entry.json) for entry in query.recentProgress]
    reached: dict[str, dict[str, int]] = {}
    for entry in progress:
        for source in entry["sources"]:
            end = source.get("endOffset")
            reached.update(json.loads(end) if isinstance(end, str) else end or {})
    return {
        "rows": sum(entry["numInputRows"] for entry in progress),
        "batches": sum(1 for entry in progress if entry["numInputRows"]),
        "end_offsets": reached,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of the job."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", help="host:port,... (default: %(default)s)"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--topics", help="topic names, comma separated")
    source.add_argument("--topics-pattern", help="a Java regular expression that topic names match")
    parser.add_argument(
        "--output", required=True, help="folder (or object store path) of the Parquet files"
    )
    parser.add_argument(
        "--checkpoint", help="folder of the checkpoint (default: OUTPUT + '.checkpoint')"
    )
    parser.add_argument(
        "--starting-offsets",
        default="earliest",
        help="first run: earliest, latest or Spark's JSON of offsets (default: %(default)s)",
    )
    parser.add_argument(
        "--starting-timestamp",
        type=int,
        metavar="MS",
        help="first run: records from this time on (ms since 1970)",
    )
    parser.add_argument(
        "--every",
        metavar="INTERVAL",
        help="keep running, a batch every '10 seconds', '1 minute', ...",
    )
    parser.add_argument(
        "--max-offsets-per-trigger", type=int, metavar="N", help="at most N records a batch"
    )
    parser.add_argument(
        "--partition-by",
        action="append",
        default=[],
        choices=["topic", "partition"],
        help="a folder level per value",
    )
    parser.add_argument(
        "--ignore-data-loss",
        action="store_true",
        help="continue where offsets no longer exist (retention, deleted topic)",
    )
    parser.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed to the Kafka source as it is",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one line of JSON")


def parse_options(arguments: argparse.Namespace) -> ArchiveOptions:
    """Make options of the command line. Raises JobError for a --kafka-option without '='."""
    kafka_options = {}
    for item in arguments.kafka_option:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise JobError(f"--kafka-option {item}: give it as NAME=VALUE")
        kafka_options[name] = value
    output = arguments.output.rstrip("/") or arguments.output
    checkpoint = arguments.checkpoint or output + ".checkpoint"
    if not started_by_spark_submit():  # else the cluster's file system may be what is meant
        output, checkpoint = (
            os.path.abspath(path) if is_local(path) else path for path in (output, checkpoint)
        )
    return ArchiveOptions(
        bootstrap_servers=arguments.bootstrap_servers,
        output=output,
        checkpoint=checkpoint,
        topics=arguments.topics,
        topics_pattern=arguments.topics_pattern,
        starting_offsets=arguments.starting_offsets,
        starting_timestamp_ms=arguments.starting_timestamp,
        every=arguments.every,
        max_offsets_per_trigger=arguments.max_offsets_per_trigger,
        partition_by=tuple(arguments.partition_by),
        fail_on_data_loss=not arguments.ignore_data_loss,
        kafka_options=kafka_options,
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the job to its end (or, with --every, until it is stopped). Raises JobError if the query
    failed.
    """
    options = parse_options(arguments)
    check_before_spark(options)
    with open_session(f"archive {options.topics or options.topics_pattern}") as spark:
        check_pair(options.output, options.checkpoint, lambda path: has_files(spark, path))
        try:
            query = start_archive(spark, options)
        except Exception as error:  # pyspark's own, and Java's through py4j
            raise JobError(f"archive cannot start: {_first_cause(error)}") from error
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
        except Exception as error:  # pyspark's StreamingQueryException, and Java's own through py4j
            raise JobError(f"archive stopped: {_first_cause(error)}") from error
        result = summary(query)
    if arguments.json:
        print(json.dumps(result))
    else:
        source = options.topics or options.topics_pattern
        print(
            f"archived {counted(result['rows'], 'record')} of {source} to {options.output} "
            f"in {counted(result['batches'], 'batch')}"
        )
    return 0


def check_before_spark(options: ArchiveOptions) -> None:
    """Raise JobError for mistakes that would make Spark fail or hang."""
    if not started_by_spark_submit():
        if is_local(options.output) and is_local(options.checkpoint):
            check_pair(options.output, options.checkpoint, has_local_files)
        for name, path in (("--output", options.output), ("--checkpoint", options.checkpoint)):
            if is_local(path):
                check_writable(name, path)
    topics = [] if options.topics is None else options.topics.split(",")
    names = [name.strip() for name in topics if name.strip()]
    check_cluster(options.bootstrap_servers, names, options.kafka_options)


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`, `2 batches`."""
    plural = f"{noun}es" if noun.endswith("h") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _first_cause(error: Exception) -> str:
    """The line of a Java failure that names its cause; with SPARK_JOBS_TRACE set, all of it."""
    text = str(error)
    if os.environ.get("SPARK_JOBS_TRACE"):
        return text
    causes = [line.strip() for line in text.splitlines() if "Caused by:" in line]
    return (causes[-1] if causes else text.strip().splitlines()[0])[:500]

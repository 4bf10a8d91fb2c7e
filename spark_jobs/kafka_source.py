"""Spark's Kafka source: its options as a table, and the reader made of them.

Differences from Spark's defaults: read_committed, the first start at the earliest offset, headers
included, and every batch bounded (by `maxBytesPerTrigger`, an estimate from the topics' sizes on
disk, where no number of records is given).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from .checkpoint import Offsets, format_offsets
from .cluster import ClusterView, Subscription
from .errors import JobError
from .options import Option, parse_boolean, parse_count, parse_names, parse_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_BYTES: Final = 256 * 1024 * 1024
DEFAULT_RECORDS: Final = 1_000_000
"""Records of a batch where sizes are not known."""

FEWEST_RECORDS: Final = 1_000

EARLIEST: Final = -2
"""Spark's number for the first offset of a partition."""

ARROW_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_BATCH_BYTES: Final = 16 * 1024 * 1024
ARROW_BATCH_RECORDS: Final = 10_000

BOOTSTRAP_OPTION: Final = Option(
    "kafka.bootstrap.servers",
    f"brokers (default: {DEFAULT_BOOTSTRAP})",
    "HOST:PORT,...",
    ("bootstrap-servers", "bootstrap-server"),
)

SOURCE_OPTIONS: Final = (
    BOOTSTRAP_OPTION,
    Option("subscribe", "topic names, comma separated", "TOPICS", ("topics",)),
    Option(
        "subscribePattern",
        "a Java regular expression that topic names match as a whole",
        "PATTERN",
        ("topics-pattern",),
    ),
    Option(
        "startingOffsets",
        "first start: earliest (default), latest or Spark's JSON of offsets",
        "OFFSETS",
    ),
    Option("startingTimestamp", "first start: records from this time on", "MS", check=parse_count),
    Option("startingOffsetsByTimestamp", "first start: Spark's JSON of times", "JSON"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "where no record is that late",
        choices=("error", "latest"),
    ),
    Option(
        "failOnDataLoss",
        "false: go on where offsets no longer exist (default: true)",
        "true|false",
        check=parse_boolean,
    ),
    Option("maxOffsetsPerTrigger", "at most N records a batch", "N", check=parse_count),
    Option(
        "maxBytesPerTrigger",
        "records of about this size a batch, as the brokers store them (default: 256m)",
        "SIZE",
        check=parse_size,
    ),
    Option("minOffsetsPerTrigger", "with --every: wait for N records", "N", check=parse_count),
    Option("maxTriggerDelay", "but for no longer than this (default: 15m)", "TIME"),
    Option("minPartitions", "read with at least N tasks", "N", check=parse_count),
    Option("maxRecordsPerPartition", "at most N records a task", "N", check=parse_count),
    Option("groupIdPrefix", "prefix of the consumer groups that Spark makes", "PREFIX"),
    Option(
        "kafkaConsumer.pollTimeoutMs", "timeout of a poll in executors", "MS", check=parse_count
    ),
    Option("fetchOffset.numRetries", "retries of a look at offsets", "N", check=parse_count),
    Option("fetchOffset.retryIntervalMs", "wait before a retry", "MS", check=parse_count),
)

_WAITING: Final = ("minOffsetsPerTrigger", "maxTriggerDelay")
"""They make a batch wait. The query of a job that ends by itself takes that for the end of what
there is.
"""

_TO_SPARK: Final = frozenset(option.name for option in SOURCE_OPTIONS) - {
    *("kafka.bootstrap.servers", "subscribe", "subscribePattern", "maxBytesPerTrigger"),
}


def source_options(values: Mapping[str, str]) -> dict[str, str]:
    """Those of a job's values that go to the source as they are. Raises JobError for limits of a
    batch that contradict each other or the schedule.
    """
    check_limits(values, values.get("trigger"))
    return {
        name: value
        for name, value in values.items()
        if name in _TO_SPARK or (name.startswith("kafka.") and name != "kafka.bootstrap.servers")
    }


def check_limits(values: Mapping[str, str], trigger: str | None) -> None:
    """Raises JobError for limits of a batch that contradict each other or the schedule. values: may
    have other options too.
    """
    for name in _WAITING:
        if name in values and trigger is None:
            raise JobError(
                f"--{name} needs --every: a job that copies what there is now, then ends, would "
                "not copy the last records"
            )
    fewest, most = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if fewest is not None and most is not None and int(fewest) > int(most):
        raise JobError(
            f"--minOffsetsPerTrigger {fewest} is more than --maxOffsetsPerTrigger {most}: no batch "
            "would ever have enough records"
        )


def starting_at(
    starting: Offsets, given: Mapping[str, str], what: Subscription, view: ClusterView
) -> dict[str, str]:
    """The source's options of a query that begins at `starting`, or if that is empty where the
    given options begin. what: is read. view: of the cluster now.

    Spark begins only if it has an offset of each partition that it reads, and of no other: a
    partition that came later begins at its first offset, one that is not read is left out. Where
    the partitions are not known, topics that are not read are left out.
    """
    if not starting:
        return dict(given)
    if view.is_known:
        offsets = {
            topic: {
                partition: starting.get(topic, {}).get(partition, EARLIEST)
                for partition in facts.latest
            }
            for topic, facts in view.topics.items()
        }
    else:
        offsets = {topic: places for topic, places in starting.items() if what.includes(topic)}
    options = {name: value for name, value in given.items() if not name.startswith("starting")}
    if offsets:
        options["startingOffsets"] = format_offsets(offsets)
    return options


def subscription(values: Mapping[str, str]) -> Subscription:
    """What the values subscribe to. Raises JobError unless it is one of the two ways."""
    topics, pattern = values.get("subscribe"), values.get("subscribePattern")
    if (topics is None) == (pattern is None):
        raise JobError("give one of --subscribe (topics) and --subscribePattern")
    if pattern is not None:
        return Subscription(pattern=pattern)
    names = parse_names(topics or "")
    if not names:
        raise JobError("--subscribe names no topic")
    return Subscription(names)


def record_limit(options: Mapping[str, str], max_bytes: int, view: ClusterView) -> int:
    """Records of a batch: as given, else as many as have about max_bytes in the brokers' logs, but
    no fewer than a batch must have.
    """
    if "maxOffsetsPerTrigger" in options:
        return int(options["maxOffsetsPerTrigger"])
    fewest = int(options.get("minOffsetsPerTrigger", 0))
    if view.record_bytes is None:
        return max(fewest, DEFAULT_RECORDS)
    return max(fewest, FEWEST_RECORDS, int(max_bytes / view.record_bytes))


def read_stream(
    spark: SparkSession,
    bootstrap_servers: str,
    what: Subscription,
    options: Mapping[str, str],
    max_records: int,
) -> DataFrame:
    """The topics as an unbounded table with the source's columns, headers among them."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", str(max_records))
    )
    if what.pattern is not None:
        reader = reader.option("subscribePattern", what.pattern)
    else:
        reader = reader.option("subscribe", ",".join(what.topics))
    if not {"startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"} & options.keys():
        reader = reader.option("startingOffsets", "earliest")
    return reader.options(**options).load()


@contextmanager
def arrow_batches(spark: SparkSession, record_bytes: float | None) -> Iterator[None]:
    """Queries that start in this block get Arrow batches of about ARROW_BATCH_BYTES: of large
    records fewer than ARROW_BATCH_RECORDS, as a batch of Arrow cannot have 2 GB.
    """
    if record_bytes is None:
        yield
        return
    records = min(max(int(ARROW_BATCH_BYTES / record_bytes), 1), ARROW_BATCH_RECORDS)
    before = str(spark.conf.get(ARROW_SETTING))
    spark.conf.set(ARROW_SETTING, str(records))
    try:
        yield
    finally:
        spark.conf.set(ARROW_SETTING, before)

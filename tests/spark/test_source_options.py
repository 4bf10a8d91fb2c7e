"""The Kafka source's options as a table: what goes to Spark, and what bounds a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jobs.archive.opening import check_start as check_archive
from spark_jobs.archive.options import ArchiveOptions, archive_options
from spark_jobs.archive.stores import store_of
from spark_jobs.cluster import ClusterView, Subscription, TopicFacts
from spark_jobs.copying.opening import check_start as check_copy
from spark_jobs.copying.opening import opened
from spark_jobs.copying.options import StreamOptions
from spark_jobs.errors import JobError
from spark_jobs.kafka_source import (
    DEFAULT_RECORDS,
    FEWEST_RECORDS,
    SOURCE_OPTIONS,
    read_stream,
    record_limit,
    source_options,
    starting_at,
    subscription,
)

NOWHERE = "127.0.0.1:1"
GUIDE = {
    *("subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "startingOffsets", "failOnDataLoss", "maxOffsetsPerTrigger"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("groupIdPrefix", "startingOffsetsByTimestampStrategy"),
}
"""Options of Spark's guide for a stream, but `assign` (the pack reads whole topics),
`kafka.group.id` (any `kafka.` name passes) and `includeHeaders` (always true).
"""


class RecordingReader:
    """What a reader was given."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    @property
    def readStream(self) -> RecordingReader:
        return self

    def format(self, name: str) -> RecordingReader:
        assert name == "kafka"
        return self

    def option(self, name: str, value: str) -> RecordingReader:
        self.given[name] = value
        return self

    def options(self, **options: str) -> RecordingReader:
        self.given |= options
        return self

    def load(self) -> RecordingReader:
        return self


def given(what: Subscription, options: dict[str, str]) -> dict[str, str]:
    reader = RecordingReader()
    read_stream(reader, "b:1", what, options, 70)  # type: ignore[arg-type]
    return reader.given


def test_the_table_is_sparks_guide() -> None:
    assert {option.name for option in SOURCE_OPTIONS} == GUIDE | {"maxBytesPerTrigger"}


@pytest.mark.parametrize("name", sorted(GUIDE))
def test_every_option_reaches_spark(name: str) -> None:
    values = {"subscribe": "a", name: "7"} if name != "subscribePattern" else {name: "7"}
    what = subscription(values)
    values["trigger"] = "1 minute"
    options = {"kafka.bootstrap.servers": "b:1"} | given(what, source_options(values))
    if name == "kafka.bootstrap.servers":
        assert name not in source_options(values)
    else:
        assert options[name] == "7"


def test_what_differs_from_sparks_defaults() -> None:
    assert given(Subscription(("a", "b")), {}) == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "subscribe": "a,b",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "70",
    }


def test_what_is_given_wins() -> None:
    options = source_options(
        {
            "kafka.isolation.level": "read_uncommitted",
            "startingTimestamp": "5",
            "path": "x",
            "spark.x": "y",
            "maxBytesPerTrigger": "1m",
        }
    )
    found = given(Subscription(pattern="p.*"), options)
    assert found["kafka.isolation.level"] == "read_uncommitted"
    assert found["subscribePattern"] == "p.*"
    assert "startingOffsets" not in found and "path" not in found and "spark.x" not in found


def test_a_batch_is_bounded() -> None:
    view = ClusterView({}, record_bytes=100.0)
    assert record_limit({}, 1_000_000, view) == 10_000
    assert record_limit({}, 100, view) == FEWEST_RECORDS
    assert record_limit({}, 1_000_000, ClusterView({}, "TLS")) == DEFAULT_RECORDS
    assert record_limit({"maxOffsetsPerTrigger": "5"}, 1_000_000, view) == 5


def test_a_batch_may_have_as_many_records_as_it_must() -> None:
    """Spark refuses a minimum above the maximum, which it is always given."""
    view = ClusterView({}, record_bytes=1000.0)
    assert record_limit({"minOffsetsPerTrigger": "500000"}, 256 << 20, view) == 500_000
    assert record_limit({"minOffsetsPerTrigger": "5"}, 256 << 20, view) == 268_435
    unknown = ClusterView({}, "TLS")
    assert record_limit({"minOffsetsPerTrigger": "5"}, 1000, unknown) == DEFAULT_RECORDS
    assert record_limit({"minOffsetsPerTrigger": "2000000"}, 1000, unknown) == 2_000_000


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"minOffsetsPerTrigger": "5"}, "--minOffsetsPerTrigger needs --every: "),
        ({"maxTriggerDelay": "5m"}, "--maxTriggerDelay needs --every: "),
        (
            {"trigger": "1 minute", "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"},
            "^--minOffsetsPerTrigger 10 is more than --maxOffsetsPerTrigger 9: ",
        ),
    ],
)
def test_limits_that_contradict_each_other(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        source_options(values)
    with pytest.raises(JobError, match=why):
        archive_options({"path": "out", "subscribe": "t"} | values)
    equal = {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "9", "maxTriggerDelay": "5m"}
    assert source_options(equal | {"trigger": "1 minute"}) == equal


@pytest.mark.parametrize(
    ("limits", "trigger"),
    [
        ({"minOffsetsPerTrigger": "5"}, None),
        ({"maxTriggerDelay": "5m"}, None),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "1 minute"),
    ],
)
def test_limits_of_options_made_in_python(
    tmp_path: Path, limits: dict[str, str], trigger: str | None
) -> None:
    """Before anything is looked at: there is no broker."""
    archive = ArchiveOptions(
        str(tmp_path / "a"), NOWHERE, "t", trigger=trigger, source_options=limits
    )
    copy = StreamOptions(
        *("dlq", "q", Subscription(("t",)), str(tmp_path / "c"), "t2", NOWHERE, NOWHERE),
        trigger=trigger,
        source_options=limits,
    )
    why = "^--m(in|ax).* (needs --every|is more than)"
    with pytest.raises(JobError, match=why):
        check_archive(archive, store_of(archive))
    with pytest.raises(JobError, match=why):
        check_copy(copy)
    with pytest.raises(JobError, match=why), opened(copy):
        pass
    assert not list(tmp_path.iterdir())


def test_one_subscription() -> None:
    assert subscription({"subscribe": "a, b,a"}).topics == ("a", "b")
    assert str(subscription({"subscribePattern": "x.*"})) == "x.*"
    with pytest.raises(JobError, match="give one of"):
        subscription({})


STARTING = {"t": {0: 7, 1: 9}, "u": {0: 3}}
VIEW = ClusterView({"t": TopicFacts("", {0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9})})
UNKNOWN = ClusterView({}, "security.protocol is SSL")


@pytest.mark.parametrize(
    ("what", "view", "offsets"),
    [
        (Subscription(("t",)), VIEW, {"t": {"0": 7, "1": 9, "2": -2}}),
        (Subscription(("t",)), UNKNOWN, {"t": {"0": 7, "1": 9}}),
        (Subscription(pattern="[u-z]"), UNKNOWN, {"u": {"0": 3}}),
        (Subscription(pattern=r"\p{L}"), UNKNOWN, {"t": {"0": 7, "1": 9}, "u": {"0": 3}}),
        (Subscription(("other",)), UNKNOWN, None),
    ],
    ids=["as they are now", "not known", "pattern", "pattern of Java", "none of them"],
)
def test_a_query_that_resumes_names_the_partitions_that_it_reads(
    what: Subscription, view: ClusterView, offsets: object
) -> None:
    """Spark ends a query whose offsets are not those of the partitions that it reads."""
    given = {"failOnDataLoss": "false", "startingTimestamp": "5"}
    options = starting_at(STARTING, given, what, view)
    assert json.loads(options.pop("startingOffsets", "null")) == offsets
    assert options == {"failOnDataLoss": "false"}
    assert starting_at({}, given, what, view) == given

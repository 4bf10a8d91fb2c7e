"""Archives whose topics come, go and lose their end, and what --resume-from makes of them, without
Spark.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.archive.opening import opened
from spark_jobs.archive.options import ArchiveOptions
from spark_jobs.archive.stores import store_of
from spark_jobs.errors import StartRefused
from tests.spark.archive_simulation import Cluster, SimulatedSpark, Topic, values_in, values_of


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def spark(cluster: Cluster) -> SimulatedSpark:
    return SimulatedSpark(cluster)


@pytest.fixture
def options(tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(output=str(tmp_path / "out"), subscribe="t")


def test_a_topic_that_is_left_out_and_read_again(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """Spark read it from its first offset, and all of it was there twice."""
    cluster.add("t", 20)
    cluster.add("u", 60)
    both = replace(options, subscribe="t,u")
    spark.run(both)
    cluster.add("t", 4)
    spark.run(replace(options, source_options={"failOnDataLoss": "false"}))
    cluster.add("u", 10)
    with pytest.raises(StartRefused, match=r"topic u was not read for a while .* up to 60 records"):
        spark.run(both)
    spark.run(replace(both, resume_from="output"))
    all_ = values_of(cluster.topics["t"]) + values_of(cluster.topics["u"])
    assert values_in(Path(options.output)) == sorted(all_)
    spark.run(both)


def test_a_topic_that_a_running_query_does_not_see_for_a_batch(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.add("t", 200)
    cluster.add("u", 60)
    both = replace(options, subscribe=None, subscribe_pattern=".*")
    plan = spark._end
    batches = iter(range(9))

    def plan_without(names, start):  # type: ignore[no-untyped-def]
        return plan(("t",) if next(batches) == 1 else names, start)

    with monkeypatch.context() as patch:
        patch.setattr(spark, "_end", plan_without)
        with pytest.raises(StartRefused, match=r"was not read .* nothing of this batch is visible"):
            spark.run(both)
    seen = values_in(Path(options.output))
    assert len(seen) == len(set(seen))
    with pytest.raises(StartRefused, match=r"out\.checkpoint: topic u was not read for a while"):
        spark.run(both)
    spark.run(replace(both, resume_from="output"))
    all_ = values_of(cluster.topics["t"]) + values_of(cluster.topics["u"])
    assert values_in(Path(options.output)) == sorted(all_)


def test_a_topic_that_is_read_again_before_the_first_batch_of_a_resume(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark has noted where the query begins, with the other topic alone."""
    cluster.add("t", 20)
    cluster.add("u", 20)
    both = replace(options, subscribe="t,u")
    spark.run(both)

    def cut_off(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spark, "_end", cut_off)
        with pytest.raises(KeyboardInterrupt):
            spark.run(replace(options, resume_from="output"))
    with pytest.raises(StartRefused, match="topic u was not read for a while"):
        spark.run(both)
    spark.run(replace(both, resume_from="output"))
    all_ = values_of(cluster.topics["t"]) + values_of(cluster.topics["u"])
    assert values_in(Path(options.output)) == sorted(all_)


def test_a_resume_without_a_topic_that_is_no_longer_there(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    """Spark got an offset of it and ended the query; every start after that did the same."""
    cluster.add("t", 20)
    cluster.add("u", 20)
    spark.run(replace(options, subscribe="t,u"))
    old = values_of(cluster.topics.pop("u"))
    cluster.add("t", 6)
    spark.run(replace(options, resume_from="output"))
    cluster.add("t", 6)
    spark.run(replace(options, source_options={"failOnDataLoss": "false"}))
    assert values_in(Path(options.output)) == sorted(old + values_of(cluster.topics["t"]))


def test_a_resume_that_was_cut_off_before_partitions_and_topics_came(
    cluster: Cluster, spark: SimulatedSpark, options: ArchiveOptions
) -> None:
    cluster.add("t", 20)
    spark.run(options)
    cluster.add("t", 6)
    with opened(replace(options, resume_from="output"), store_of(options)):
        pass
    cluster.topics["t"].values[2] = [b"new"]
    cluster.add("u", 20)
    spark.run(replace(options, subscribe="t,u"))
    both = values_of(cluster.topics["t"]) + values_of(cluster.topics["u"])
    assert values_in(Path(options.output)) == sorted(both)


@pytest.mark.parametrize(
    ("topic_id", "now"),
    [
        pytest.param("id-t", [b"old-%d" % n for n in range(30)], id="lost its end"),
        pytest.param("", [b"new-%d" % n for n in range(30)], id="created again, without topic ids"),
    ],
)
def test_records_that_kafka_no_longer_has_stay(
    cluster: Cluster,
    spark: SimulatedSpark,
    options: ArchiveOptions,
    topic_id: str,
    now: list[bytes],
) -> None:
    """They were deleted, although the refusal promises that they stay."""
    old = [b"old-%d" % n for n in range(100)]
    cluster.topics["t"] = Topic(topic_id, {0: old})
    spark.run(options)
    cluster.topics["t"] = Topic(topic_id, {0: now})
    with pytest.raises(StartRefused, match=r"earliest archives the new topic beside the old"):
        spark.run(options)
    resuming = replace(options, resume_from="earliest")
    spark.run(resuming)
    assert values_in(Path(options.output)) == sorted(old + now)
    spark.run(resuming)  # of the new generation nothing is lost, so it is archived again in place
    cluster.topics["t"].values[0] = [*now, b"later"]
    spark.run(options)
    assert values_in(Path(options.output)) == sorted([*old, *now, b"later"])

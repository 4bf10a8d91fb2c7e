"""How long the targets that the jobs make ready keep records: at least as long as the source."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.cluster import Subscription
from spark_jobs.copying.targets import FOR_EVER, create_target, retention_of, set_configs
from spark_jobs.dedupe.options import dedupe_options
from spark_jobs.dedupe.rule import DedupeRule
from spark_jobs.dlq import job as dlq
from spark_jobs.dlq.options import DlqOptions
from spark_jobs.mirror import job as mirror
from spark_jobs.mirror.options import MirrorOptions
from spark_jobs.progress import Totals
from spark_jobs.stateful import job as stateful
from spark_jobs.wire.client import BlockingClient
from spark_jobs.wire.offsets import topic_facts

WEEK_MS = 7 * 24 * 3_600_000
"""What a broker keeps by default."""

YEAR_MS = 52 * WEEK_MS
RUNNING = {"cleanup.policy": "compact"}

Prepare = Callable[[str, str], tuple[str, ...]]
"""Runs a job from a topic to another one, up to the start of its query; gives its notes."""


@pytest.fixture
def source(client: BlockingClient) -> str:
    """A topic that keeps records for ever."""
    name = f"source-{urandom(4).hex()}"
    create_target(client, name, 2, {"retention.ms": "-1"})
    return name


@pytest.fixture(params=["dlq", "mirror", "dedupe", "windowed", "running"])
def prepare(
    request: pytest.FixtureRequest,
    kafka_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Prepare:
    """Each job. All but `mirror` write `NAME-also` too, dead letters or late records."""
    servers = kafka_broker.bootstrap_servers
    spark: Any = None
    for module in (dlq, mirror, stateful):
        monkeypatch.setattr(module, "run_copy", lambda *_args, **_options: Totals())
    monkeypatch.setattr(dlq, "_decoder", lambda *_args: None)

    def run(source: str, target: str) -> tuple[str, ...]:
        checkpoint = str(tmp_path / f"{target}-{urandom(4).hex()}")
        if request.param == "dlq":
            options = DlqOptions(
                source, target, checkpoint, f"{target}-also", bootstrap_servers=servers
            )
            return dlq.dlq(spark, options).notes
        if request.param == "mirror":
            prefix = target.removesuffix(source)
            mirrored = MirrorOptions(
                Subscription((source,)), checkpoint, servers, prefix=prefix, query_name=target
            )
            return mirror.mirror(spark, mirrored).notes
        values = {
            "topic": source,
            "toTopic": target,
            "checkpointLocation": checkpoint,
            "kafka.bootstrap.servers": servers,
            "delayThreshold": "1 hour",
            "lateTopic": f"{target}-also",
        }
        rule = DedupeRule("key")
        configs = RUNNING if request.param == "running" else {}
        report = stateful.run_stateful(
            spark, dedupe_options(values).stateful, rule, configs, reporter=None, stop=None
        )
        return report.notes

    return run


def made(client: BlockingClient, target: str) -> list[str]:
    """The topics of a job that there are."""
    return sorted(topic_facts(client, [target, f"{target}-also"]))


def test_a_source_that_is_kept_for_ever(
    client: BlockingClient, source: str, prepare: Prepare
) -> None:
    """Targets had the cluster's default, and old records, which keep their times, were deleted."""
    notes = " ".join(prepare(source, f"to.{source}"))
    for name in made(client, f"to.{source}"):
        assert f"created topic {name} with 2 partitions" in notes
        assert retention_of(client, name) == FOR_EVER


@pytest.mark.parametrize("source_ms", [YEAR_MS, 3_600_000])
def test_a_source_that_is_kept_for_longer_or_shorter_than_the_default(
    client: BlockingClient, source: str, prepare: Prepare, source_ms: int
) -> None:
    set_configs(client, source, {"retention.ms": str(source_ms), "retention.bytes": "100000"})
    prepare(source, f"to.{source}")
    for name in made(client, f"to.{source}"):
        kept_ms, kept_bytes = retention_of(client, name)
        assert kept_ms < 0 or kept_ms >= source_ms
        assert kept_bytes in (-1, 100_000)


def test_a_target_that_is_kept_for_a_shorter_time(
    client: BlockingClient, source: str, prepare: Prepare
) -> None:
    target = f"to.{source}"
    prepare(source, target)
    for name in made(client, target):
        set_configs(client, name, {"retention.ms": "5000", "cleanup.policy": "delete"})
    set_configs(client, source, {"retention.ms": str(WEEK_MS)})
    notes = " ".join(prepare(source, target))
    for name in made(client, target):
        is_set_again = f"set retention.ms={WEEK_MS} of topic {name}" in notes
        is_said = f"topic {name} has retention.ms=5000: the brokers delete records" in notes
        assert is_set_again or is_said


def test_a_target_that_is_kept_as_long_needs_no_note(
    client: BlockingClient, source: str, prepare: Prepare
) -> None:
    set_configs(client, source, {"retention.ms": str(WEEK_MS)})
    prepare(source, f"to.{source}")
    assert prepare(source, f"to.{source}") == ()

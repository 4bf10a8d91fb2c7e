"""LogConfig: the broker's defaults under the topic's own settings."""

from __future__ import annotations

import dataclasses

import pytest

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.tables.keys import ConfigError
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from kbroker.settings.views.log_config import (
    MAX_UNPACKED_BYTES,
    MIN_UNPACKED_BYTES,
    LogConfig,
    LogConfigs,
    max_unpacked_bytes,
)


def log_config(broker: dict[str, str], topic: dict[str, str]) -> LogConfig:
    return LogConfig.from_configs(BrokerConfig.from_properties(broker), topic)


def test_defaults() -> None:
    assert log_config({}, {}) == LogConfig()


def test_every_topic_key_has_its_field_but_those_not_served() -> None:
    fields = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig) if field.init}
    assert set(TOPIC_KEYS) - fields == {
        "follower.replication.throttled.replicas",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
    assert fields - set(TOPIC_KEYS) == {"validate.records", "max.unpacked.bytes"}


def test_a_batch_may_unpack_to_a_share_of_the_memory_limit() -> None:
    assert (
        log_config({"kbroker.memory.limit.bytes": "134217728"}, {}).max_unpacked_bytes == 10 << 20
    )
    assert max_unpacked_bytes(1 << 40) == MAX_UNPACKED_BYTES
    assert max_unpacked_bytes(1 << 20) == MIN_UNPACKED_BYTES


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        (
            {
                "log.retention.hours": "2",
                "log.retention.minutes": "3",
                "log.retention.ms": "4",
            },
            4,
        ),
        ({"log.retention.ms": "-1"}, -1),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-5"}, -1),
    ],
)
def test_retention(broker: dict[str, str], retention_ms: int) -> None:
    assert log_config(broker, {}).retention_ms == retention_ms


def test_roll_and_flush() -> None:
    config = log_config({"log.roll.hours": "1", "log.roll.jitter.hours": "2"}, {})
    assert (config.segment_ms, config.segment_jitter_ms) == (3_600_000, 7_200_000)
    config = log_config({"log.roll.hours": "1", "log.roll.ms": "5", "log.roll.jitter.ms": "6"}, {})
    assert (config.segment_ms, config.segment_jitter_ms) == (5, 6)
    assert log_config({"log.flush.scheduler.interval.ms": "7"}, {}).flush_ms == 7
    both = {"log.flush.scheduler.interval.ms": "7", "log.flush.interval.ms": "8"}
    assert log_config(both, {}).flush_ms == 8


def test_topic_wins() -> None:
    broker = {
        "log.retention.ms": "4",
        "message.max.bytes": "10",
        "kbroker.validate.records": "true",
    }
    config = log_config(
        broker, {"retention.ms": "9", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"}
    )
    assert (config.retention_ms, config.max_message_bytes) == (9, 10)
    assert config.compact
    assert not config.delete
    assert config.min_cleanable_dirty_ratio == 1.0
    assert config.validate_records


def test_internal_segment_bytes() -> None:
    overrides = {"internal.segment.bytes": "100", "segment.bytes": "2097152"}
    assert log_config({}, overrides).segment_bytes == 100
    assert log_config({}, {"segment.bytes": "2097152"}).segment_bytes == 2_097_152


def test_bad_value() -> None:
    with pytest.raises(ConfigError):
        log_config({}, {"retention.ms": "x"})


def test_a_stored_value_that_cannot_be_is_one_topics_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a metadata log of another version may have it: the change must reach all other topics."""
    configs = LogConfigs(BrokerConfig.from_properties({"log.retention.ms": "5000"}))
    overrides = {"retention.ms": "-7", "segment.ms": "soon", "flush.ms": "7", "unheard.of": "x"}
    for _ in range(2):
        config = configs.of(overrides)
        assert (config.retention_ms, config.segment_ms, config.flush_ms) == (5000, 604_800_000, 7)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]

"""The settings of new topics: which are refused, and the records they are written as."""

from __future__ import annotations

import pytest

from kbroker.controller.configs.topic_configs import config_records, validate
from kbroker.metadata.image import ELIGIBLE_LEADER_REPLICAS, TOPIC_RESOURCE, MetadataImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.tables.topic_table import TOPIC_KEYS


def image(*, elr: bool) -> MetadataImage:
    return MetadataImage(features={ELIGIBLE_LEADER_REPLICAS: 1} if elr else {})


def test_valid_overrides_keep_their_order() -> None:
    asked = {"retention.ms": "1", "cleanup.policy": "compact"}
    assert list(validate(asked).items()) == list(asked.items())
    assert validate({}) == {}


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"no.such.key": "1"}, "no.such.key"),
        ({"segment.bytes": "1"}, "segment.bytes"),
        ({"zzz": "1", "retention.ms": None}, "Null value"),
        ({"leader.replication.throttled.replicas": "1:1," * 9000}, "maximum value size of 32767"),
        ({"leader.replication.throttled.replicas": "é" * 16384}, "maximum value size of 32767"),
    ],
)
def test_what_is_refused(configs: dict[str, str | None], words: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate(configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert words in str(caught.value)


class Counted(dict[str, str | None]):
    """Counts the values that are read."""

    read = 0

    def __getitem__(self, name: str) -> str | None:
        self.read += 1
        return super().__getitem__(name)


def test_few_of_very_many_names_are_looked_at() -> None:
    configs = Counted((f"key.{number:05d}", "1") for number in range(70_000))
    with pytest.raises(KafkaError, match=r"Unknown topic config name: key\.00000"):
        validate(configs)
    assert configs.read <= len(TOPIC_KEYS) + 1


def test_records_of_overrides() -> None:
    values = {"retention.ms": "1", "cleanup.policy": "compact"}
    records = config_records(image(elr=True), "t", values)
    assert records == [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name=name, value=value)
        for name, value in values.items()
    ]


@pytest.mark.parametrize("elr", [True, False])
def test_a_new_minimum_makes_void_what_elr_knew(elr: bool) -> None:
    records = config_records(image(elr=elr), "t", {"min.insync.replicas": "2"})
    assert records[1:] == ([ClearElrRecord(topic_name="t")] if elr else [])

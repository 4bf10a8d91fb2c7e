"""The records of bootstrap.checkpoint, compared with those of Apache Kafka's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.metadata.records import decode_record
from kbroker.protocol.messages.metadata_records import FeatureLevelRecord
from kbroker.quorum.bootstrap import DEFAULT_LEVELS, default_bootstrap_records
from kbroker.quorum.snapshots import read_snapshot


def test_the_records_are_kafkas(kafka_directory: Callable[[str], Path]) -> None:
    kafkas = read_snapshot(kafka_directory("data-clean") / "bootstrap.checkpoint")
    ours = default_bootstrap_records()
    assert kafkas.records[: len(ours)] == ours
    others = [decode_record(data) for data in kafkas.records[len(ours) :]]
    assert [type(each).__name__ for each in others] == ["UserScramCredentialRecord"]


def test_each_level_is_supported() -> None:
    found = [decode_record(data) for data in default_bootstrap_records()]
    levels = {
        each.name: each.feature_level for each in found if isinstance(each, FeatureLevelRecord)
    }
    assert levels == DEFAULT_LEVELS
    assert next(iter(levels)) == "metadata.version", "it decides how all later records are read"
    for name, level in levels.items():
        low, high = SUPPORTED_FEATURES[name]
        assert low <= level <= high, name

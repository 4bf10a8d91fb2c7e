"""The records of bootstrap.checkpoint, compared with those of Apache Kafka's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.metadata.records import decode_record
from kbroker.model import StartupError
from kbroker.protocol.messages.stored.metadata_records import FeatureLevelRecord
from kbroker.quorum.disk.snapshots import read_snapshot
from kbroker.quorum.formatting.bootstrap import (
    DEFAULT_LEVELS,
    bootstrap_records,
    default_bootstrap_records,
    initial_levels,
    metadata_version_name,
    parse_features,
    release_level,
)


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


KAFKAS = json.loads((Path(__file__).parents[2] / "data" / "kafka" / "apis.json").read_text())


def test_the_defaults_of_each_release_are_kafkas() -> None:
    for version in KAFKAS["metadataVersions"]:
        name, level = version["version"], version["level"]
        if not version["production"]:
            with pytest.raises(StartupError, match=r"Unknown metadata\.version"):
                release_level(name)
            continue
        assert metadata_version_name(level) == name
        levels = initial_levels(name, is_dynamic=False)
        assert levels.pop("metadata.version") == release_level(name) == level
        assert levels == {**version["featureDefaults"], "kraft.version": 0}
        assert initial_levels(asked={"metadata.version": level}, is_dynamic=False) == {
            "metadata.version": level,
            **levels,
        }


@pytest.mark.parametrize(
    ("release", "level"),
    [("3.3", 7), ("3.5", 11), ("3.7", 19), ("4.0", 25), ("4.0.1", 25), ("4.3.1", 30), ("4.3", 30)],
)
def test_a_release_has_its_newest_level(release: str, level: int) -> None:
    assert release_level(release) == level


@pytest.mark.parametrize("release", ["", "4", "2.8", "4.3-IV9", "5.0", "x"])
def test_unknown_releases(release: str) -> None:
    with pytest.raises(StartupError, match=r"Supported metadata.version are: 3\.3-IV3, .*4\.3-IV0"):
        release_level(release)


def test_what_is_asked_for_wins_and_a_level_of_0_has_no_record() -> None:
    levels = initial_levels("4.3", {"group.version": 0, "transaction.version": 1})
    assert (levels["group.version"], levels["kraft.version"]) == (0, 1)
    names = [decode_record(each).name for each in bootstrap_records(levels)]  # type: ignore[union-attr]
    assert names == [
        "metadata.version",
        "eligible.leader.replicas.version",
        "share.version",
        "streams.version",
        "transaction.version",
    ]


@pytest.mark.parametrize(
    ("release", "asked", "is_dynamic", "message"),
    [
        ("4.3", {"metadata.version": 30}, True, "Use --release-version instead of"),
        (None, {"metadata.version": 6}, True, "No MetadataVersion with feature level 6"),
        (None, {"metadata.version": 31}, True, "No MetadataVersion with feature level 31"),
        (None, {"no.version": 1}, True, "Unsupported feature: no.version. Supported features are:"),
        (None, {"group.version": 2}, True, "No feature:group.version with feature level 2"),
        (None, {"group.version": -1}, True, "No feature:group.version with feature level -1"),
        ("3.9", {"eligible.leader.replicas.version": 1}, True, "metadata.version level 23"),
        (None, {"kraft.version": 0}, True, "Cannot set kraft.version to 0 if"),
        (None, {"kraft.version": 1}, False, "Cannot set kraft.version to 1 unless"),
    ],
)
def test_levels_that_cannot_be(
    release: str | None, asked: dict[str, int], is_dynamic: bool, message: str
) -> None:
    with pytest.raises(StartupError) as caught:
        initial_levels(release, asked, is_dynamic=is_dynamic)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_as_text() -> None:
    assert parse_features(["a=1", " b = 2 ", "a=3"]) == {"a": 3, "b": 2}
    for text in ("a", "a=", "a=x", "a=40000"):
        with pytest.raises(StartupError, match="Can't parse feature=level string"):
            parse_features([text])

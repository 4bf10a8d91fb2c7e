"""UpdateFeatures: what Apache Kafka 4.3.1 answers, level by level."""

from __future__ import annotations

import pytest

from kbroker.metadata.image import METADATA_VERSION
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.metadata_records import ConfigRecord, FeatureLevelRecord
from tests.controller.cluster import Cluster

ELR = "eligible.leader.replicas.version"
GROUP, TRANSACTION = "group.version", "transaction.version"
KRAFT = "kraft.version"
UP, SAFE, UNSAFE = 1, 2, 3
Update = tuple[str, int, int]


def ask(
    cluster: Cluster, *updates: Update, version: int = 2, validate_only: bool = False
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    return cluster.run(
        cluster.controller.update_features(request, api_version=version, kraft_version=1)
    )


def test_levels_go_down_and_up() -> None:
    cluster = Cluster()
    ask(cluster, (TRANSACTION, 1, SAFE), (GROUP, 0, UNSAFE))
    assert cluster.image.features[TRANSACTION] == 1
    assert GROUP not in cluster.image.features
    ask(cluster, (TRANSACTION, 2, UP), (GROUP, 1, UP))
    assert (cluster.image.features[TRANSACTION], cluster.image.features[GROUP]) == (2, 1)


def test_the_last_of_two_updates_of_one_feature_counts() -> None:
    cluster = Cluster()
    response = ask(cluster, (GROUP, 1, UP), (GROUP, 0, SAFE), version=1)
    assert GROUP not in cluster.image.features
    assert [result.feature for result in response.results] == [GROUP, GROUP]


def test_each_version_answers_in_its_way() -> None:
    cluster = Cluster()
    for version in (0, 1):
        response = ask(cluster, (GROUP, 1, UP), version=version)
        found = [(r.feature, r.error_code, r.error_message) for r in response.results]
        assert found == [(GROUP, 0, "NONE")]
        assert response.error_message is None
    assert ask(cluster, (GROUP, 1, UP), version=2).results == []


def test_validate_only_changes_nothing() -> None:
    cluster = Cluster()
    before = len(cluster.log)
    assert ask(cluster, (TRANSACTION, 1, SAFE), validate_only=True).error_code == 0
    assert len(cluster.log) == before


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (
            (TRANSACTION, 1, UP),
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        ),
        ((TRANSACTION, 3, UP), "Local controller 1 only supports versions 0-2"),
        ((TRANSACTION, -1, UP), "A feature version cannot be less than 0."),
        ((TRANSACTION, 1, 9), "The controller does not support the given upgrade type."),
        ((TRANSACTION, 1, 0), "The controller does not support the given upgrade type."),
        (("nonsense.version", 1, UP), "Local controller 1 does not support this feature."),
        (("", 1, UP), "Local controller 1 does not support this feature."),
        ((METADATA_VERSION, 31, UP), "Local controller 1 only supports versions 7-30"),
        ((KRAFT, 0, SAFE), "It cannot be changed while the quorum runs."),
    ],
)
def test_what_is_refused(update: Update, words: str) -> None:
    cluster = Cluster()
    before = len(cluster.log)
    with pytest.raises(KafkaError) as refused:
        ask(cluster, (GROUP, 0, SAFE), update)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert refused.value.message == (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {update[1]} for feature {update[0]}. {words}"
    )
    assert len(cluster.log) == before


def test_no_raise_is_a_downgrade() -> None:
    cluster = Cluster()
    ask(cluster, (GROUP, 0, SAFE))
    with pytest.raises(KafkaError, match="Can't downgrade to a newer version"):
        ask(cluster, (GROUP, 1, SAFE))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            SAFE,
            "Refusing to perform the requested downgrade because it might delete metadata "
            "information.",
        ),
        (UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
    ],
)
def test_the_metadata_version_never_goes_down(kind: int, words: str) -> None:
    with pytest.raises(KafkaError) as refused:
        ask(Cluster(), (METADATA_VERSION, 29, kind))
    assert refused.value.message.endswith(
        f"error: Unsupported metadata.version downgrade from 30 to 29. {words}"
    )


def test_eligible_leader_replicas_bring_the_config_they_need() -> None:
    cluster = Cluster(elr=False)
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(feature=ELR, max_version_level=1, upgrade_type=1)
        ]
    )
    result = cluster.controller.update_features(request, api_version=2, kraft_version=1)
    assert [type(record) for record in result.records] == [FeatureLevelRecord, ConfigRecord]
    cluster.run(result)
    again = cluster.controller.update_features(request, api_version=2, kraft_version=1)
    assert [type(record) for record in again.records] == [FeatureLevelRecord]
    with pytest.raises(KafkaError, match=r"depends on metadata\.version level 23"):
        ask(old_cluster(), (ELR, 1, UP))


def old_cluster() -> Cluster:
    """One whose metadata.version is that of 4.0's first."""
    cluster = Cluster(elr=False)
    record = FeatureLevelRecord(name=METADATA_VERSION, feature_level=22)
    cluster.controller.replay([record], offset=99, epoch=1)
    return cluster

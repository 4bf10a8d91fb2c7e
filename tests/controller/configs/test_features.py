"""UpdateFeatures: what Apache Kafka 4.3.1 answers, level by level."""

from __future__ import annotations

import pytest

from kbroker.controller.configs.features import cluster_min_insync_record
from kbroker.controller.result import ControllerResult
from kbroker.metadata.configs import TopicSettings
from kbroker.metadata.image import BROKER_RESOURCE, METADATA_VERSION
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.stored.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    RegisterControllerRecord,
)
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import Cluster, registration

ELR = "eligible.leader.replicas.version"
MIN_ISR = "min.insync.replicas"
GROUP, TRANSACTION = "group.version", "transaction.version"
KRAFT = "kraft.version"
UP, SAFE, UNSAFE = 1, 2, 3
Update = tuple[str, int, int]


def settings(**properties: str) -> TopicSettings:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return TopicSettings(BrokerConfig.from_properties(named), 7)


class Quorum:
    """A metadata quorum. problem: why kraft.version may not be upgraded."""

    def __init__(self, kraft_version: int = 1, problem: str = "") -> None:
        self.kraft_version = kraft_version
        self._problem = problem

    def check_kraft_upgrade(self, level: int) -> None:
        if self._problem:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, self._problem)


def decide(
    cluster: Cluster,
    *updates: Update,
    version: int = 2,
    validate_only: bool = False,
    quorum: Quorum | None = None,
) -> ControllerResult[UpdateFeaturesResponse]:
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind
            )
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    return cluster.controller.update_features(
        request, api_version=version, quorum=quorum or Quorum()
    )


def ask(
    cluster: Cluster, *updates: Update, version: int = 2, validate_only: bool = False
) -> UpdateFeaturesResponse:
    return cluster.run(decide(cluster, *updates, version=version, validate_only=validate_only))


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
        (("nonsense.version", 0, SAFE), "Feature nonsense.version not found."),
        ((KRAFT, 2, UP), "Local controller 1 only supports versions 0-1"),
        ((KRAFT, 0, SAFE), "Can't downgrade the version of this feature."),
        ((KRAFT, 0, UNSAFE), "Can't downgrade the version of this feature."),
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
    result = decide(cluster, (ELR, 1, UP))
    assert [type(record) for record in result.records] == [FeatureLevelRecord, ConfigRecord]
    cluster.run(result)
    again = decide(cluster, (ELR, 1, UP))
    assert [type(record) for record in again.records] == [FeatureLevelRecord]
    with pytest.raises(KafkaError, match=r"depends on metadata\.version level 23"):
        ask(old_cluster(), (ELR, 1, UP))


def test_eligible_leader_replicas_end_what_single_brokers_have() -> None:
    """One with a lower min.insync.replicas would acknowledge what an eligible leader lacks."""
    cluster = Cluster(elr=False)
    own = [
        ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=name, name=key, value="1")
        for name, key in (("", MIN_ISR), ("1", MIN_ISR), ("7", MIN_ISR), ("7", "num.io.threads"))
    ]
    cluster.run(ControllerResult(own, None))
    result = decide(cluster, (ELR, 1, UP))
    *ended, level = result.records
    assert isinstance(level, FeatureLevelRecord)
    assert [(r.resource_name, r.name, r.value) for r in ended if isinstance(r, ConfigRecord)] == [
        ("1", MIN_ISR, None),
        ("7", MIN_ISR, None),
    ]
    cluster.run(result)
    assert cluster.image.configs[BROKER_RESOURCE, "7"] == {"num.io.threads": "1"}
    assert (BROKER_RESOURCE, "1") not in cluster.image.configs


def old_cluster() -> Cluster:
    """One whose metadata.version is that of 4.0's first."""
    cluster = Cluster(elr=False)
    record = FeatureLevelRecord(name=METADATA_VERSION, feature_level=22)
    cluster.controller.replay([record], offset=99, epoch=1)
    return cluster


def test_the_quorum_upgrades_kraft_version() -> None:
    cluster = Cluster()
    result = decide(cluster, (KRAFT, 1, UP), (GROUP, 0, SAFE), quorum=Quorum(0))
    assert result.kraft_version == 1
    assert [type(each) for each in result.records] == [NoOpRecord, FeatureLevelRecord]
    assert KRAFT not in cluster.image.features


def test_kraft_version_may_stay_what_it_is() -> None:
    cluster = Cluster()
    upgraded = decide(cluster, (KRAFT, 1, UP))
    assert (upgraded.kraft_version, [type(each) for each in upgraded.records]) == (1, [NoOpRecord])
    kept = decide(cluster, (KRAFT, 1, SAFE))
    assert (kept.kraft_version, kept.records) == (None, [])


def test_validate_only_upgrades_nothing_and_asks_the_quorum() -> None:
    cluster = Cluster()
    result = decide(cluster, (KRAFT, 1, UP), validate_only=True, quorum=Quorum(0))
    assert (result.kraft_version, result.records) == (None, [])
    with pytest.raises(KafkaError, match=r"had an error: not yet$"):
        decide(cluster, (KRAFT, 1, UP), validate_only=True, quorum=Quorum(0, "not yet"))


def test_a_refused_request_upgrades_nothing() -> None:
    with pytest.raises(KafkaError):
        decide(Cluster(), (KRAFT, 1, UP), (TRANSACTION, 3, UP), quorum=Quorum(0))


def test_every_broker_must_support_the_level() -> None:
    cluster = Cluster()
    request = registration(4)
    request.features = [each for each in request.features if each.name != "streams.version"]
    for feature in request.features:
        if feature.name == TRANSACTION:
            feature.max_supported_version = 1
    cluster.run(decide(cluster, (TRANSACTION, 1, SAFE), ("streams.version", 0, SAFE)))
    cluster.run(
        cluster.controller.register_broker(request, kraft_version=1, has_valid_session=False)
    )
    with pytest.raises(KafkaError, match=r"Broker 4 only supports versions 0-1$"):
        decide(cluster, (TRANSACTION, 2, UP))
    with pytest.raises(KafkaError, match=r"Broker 4 does not support this feature\.$"):
        decide(cluster, ("streams.version", 1, UP))


def test_every_controller_must_support_the_level() -> None:
    cluster = Cluster(
        controller_quorum_voters="1@a:1,2@b:1,3@c:1",
        controller_listener_names="CONTROLLER",
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
    )
    with pytest.raises(KafkaError, match="controller 2 has not registered, and may not support"):
        decide(cluster, (GROUP, 1, UP))
    feature = RegisterControllerRecord.ControllerFeature(
        name=GROUP, min_supported_version=0, max_supported_version=0
    )
    for number in (1, 2, 3):
        record = RegisterControllerRecord(controller_id=number, features=[feature])
        cluster.run(ControllerResult([record], None))
    with pytest.raises(KafkaError, match=r"Controller 2 does not support this feature\.$"):
        decide(cluster, (GROUP, 1, UP))
    cluster.level(14)  # it has no registrations of controllers
    assert decide(cluster, (GROUP, 1, UP)).records


@pytest.mark.parametrize(("properties", "value"), [({}, "1"), ({"min_insync_replicas": "3"}, "3")])
def test_the_clusters_minimum_is_that_of_the_file(properties: dict[str, str], value: str) -> None:
    record = cluster_min_insync_record(settings(**properties))
    assert (record.resource_type, record.resource_name) == (BROKER_RESOURCE, "")
    assert (record.name, record.value) == ("min.insync.replicas", value)

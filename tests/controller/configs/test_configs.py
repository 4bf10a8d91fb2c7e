"""What AlterConfigs and IncrementalAlterConfigs make of the settings that stand. Kafka's answers to
the same are in tests/reference.
"""

from __future__ import annotations

import pytest

from kbroker.controller.configs.configs import (
    ALTERED,
    Alteration,
    AlterationOutcome,
    Alterations,
    AlteredResource,
    _altered_list,
)
from kbroker.controller.policies import AlteredConfigs, Policies, PolicyViolation
from kbroker.model import ConfigOperation
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ClearElrRecord, ConfigRecord
from kbroker.settings.tables.keys import ResourceType
from tests.controller.cluster import Cluster, topic

TOPIC, GROUP, BROKER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
REPLICAS = "follower.replication.throttled.replicas"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.create(topic("t"))
    return cluster


def alter(
    cluster: Cluster, *resources: AlteredResource, validate_only: bool = False
) -> list[AlterationOutcome]:
    request = Alterations(resources, incremental=True, validate_only=validate_only)
    return cluster.run(cluster.controller.alter_configs(request))


def setting(
    kind: int, name: str, key: str, value: str | None, operation: int = 0
) -> AlteredResource:
    return AlteredResource(kind, name, [Alteration(key, operation, value)])


def test_each_resource_has_its_own_outcome(cluster: Cluster) -> None:
    outcomes = alter(
        cluster,
        setting(TOPIC, "t", "retention.ms", "5"),
        setting(TOPIC, "nosuch", "retention.ms", "5"),
        setting(GROUP, "g", "consumer.session.timeout.ms", "50000"),
    )
    errors = [outcome.error for outcome in outcomes]
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert cluster.image.topic_configs("t") == {"retention.ms": "5"}
    assert cluster.image.group_configs("g") == {"consumer.session.timeout.ms": "50000"}


def test_nothing_is_written_on_trial_or_for_what_stands(cluster: Cluster) -> None:
    written = len(cluster.log)
    alter(cluster, setting(TOPIC, "t", "retention.ms", "5"), validate_only=True)
    assert len(cluster.log) == written
    alter(cluster, setting(TOPIC, "t", "retention.ms", "5"))
    alter(cluster, setting(TOPIC, "t", "retention.ms", "5"))
    assert len(cluster.log) == written + 1


def test_a_list_does_not_grow_without_end(cluster: Cluster) -> None:
    half = ",".join(f"{n}:1" for n in range(1_000, 4_600))
    assert alter(cluster, setting(TOPIC, "t", REPLICAS, half))[0].error is ErrorCode.NONE
    more = ",".join(f"{n}:1" for n in range(5_000, 8_600))
    (outcome,) = alter(cluster, setting(TOPIC, "t", REPLICAS, more, ConfigOperation.APPEND))
    assert outcome.error is ErrorCode.INVALID_CONFIG
    assert cluster.image.topic_configs("t") == {REPLICAS: half}


def test_a_new_minimum_makes_void_what_elr_knew(cluster: Cluster) -> None:
    resource = setting(TOPIC, "t", "min.insync.replicas", "2")
    request = Alterations([resource], incremental=True)
    result = at_once(cluster.controller.alter_configs(request))
    assert [type(record) for record in result.records] == [ConfigRecord, ClearElrRecord]
    without = Cluster(elr=False)
    without.create(topic("t"))
    result = at_once(without.controller.alter_configs(request))
    assert [type(record) for record in result.records] == [ConfigRecord]


def test_operations_that_do_not_exist(cluster: Cluster) -> None:
    (outcome,) = alter(cluster, setting(TOPIC, "t", "retention.ms", "5", 9))
    assert outcome.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("kind", [0, int(ResourceType.BROKER_LOGGER), 99])
def test_other_resources_are_not_stored(cluster: Cluster, kind: int) -> None:
    (outcome,) = alter(cluster, setting(kind, "1", "kbroker", "INFO"))
    assert outcome == AlterationOutcome(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def direct(cluster: Cluster, *resources: AlteredResource) -> list[AlterationOutcome]:
    """Asked of the controller itself, so that no broker has checked anything."""
    request = Alterations(resources, incremental=True, from_broker=False)
    return cluster.run(cluster.controller.alter_configs(request))


def test_settings_of_brokers_are_stored_also_if_they_do_not_change(cluster: Cluster) -> None:
    resource = setting(BROKER, "1", "log.retention.ms", "5")
    assert alter(cluster, resource) == [ALTERED]
    assert cluster.image.broker_configs(1) == {"log.retention.ms": "5"}
    written = len(cluster.log)
    assert alter(cluster, resource) == [ALTERED]
    assert len(cluster.log) == written + 1
    assert alter(cluster, setting(BROKER, "1", "log.retention.ms", None, ConfigOperation.DELETE))
    assert cluster.image.broker_configs(1) == {}


@pytest.mark.parametrize(
    ("name", "key", "value", "error"),
    [
        pytest.param("x", "log.retention.ms", "5", ErrorCode.INVALID_REQUEST, id="no number"),
        pytest.param("01", "log.retention.ms", "5", ErrorCode.INVALID_REQUEST, id="spelling"),
        pytest.param("-1", "log.retention.ms", "5", ErrorCode.INVALID_REQUEST, id="negative"),
        pytest.param("7", "log.retention.ms", "5", ErrorCode.BROKER_ID_NOT_REGISTERED, id="gone"),
        pytest.param("1", "log.retention.ms", "soon", ErrorCode.INVALID_CONFIG, id="value"),
        pytest.param("1", "num.partitions", "5", ErrorCode.INVALID_CONFIG, id="read-only"),
        pytest.param("", "cordoned.log.dirs", "*", ErrorCode.INVALID_CONFIG, id="scope"),
        pytest.param("1", "cordoned.log.dirs", "/d", ErrorCode.INVALID_CONFIG, id="directory"),
        pytest.param("1", "min.insync.replicas", "2", ErrorCode.INVALID_CONFIG, id="ELR"),
    ],
)
def test_what_the_controller_refuses_for_brokers(
    cluster: Cluster, name: str, key: str, value: str, error: ErrorCode
) -> None:
    (outcome,) = direct(cluster, setting(BROKER, name, key, value))
    assert outcome.error is error
    assert cluster.image.broker_configs(1) == {}


def test_a_broker_has_checked_its_settings_already(cluster: Cluster) -> None:
    resource = setting(BROKER, "1", "my.own.key", "5")
    assert alter(cluster, resource) == [ALTERED]
    assert alter(cluster, setting(BROKER, "1", "cordoned.log.dirs", "/d")) == [ALTERED]
    assert direct(cluster, setting(BROKER, "1", "cordoned.log.dirs", "")) == [ALTERED]


def test_a_new_minimum_of_all_brokers_makes_void_what_elr_knew(cluster: Cluster) -> None:
    request = Alterations([setting(BROKER, "", "min.insync.replicas", "2")], incremental=True)
    result = at_once(cluster.controller.alter_configs(request))
    assert [type(record) for record in result.records] == [ConfigRecord, ClearElrRecord]
    (outcome,) = alter(
        cluster, setting(BROKER, "", "min.insync.replicas", None, ConfigOperation.DELETE)
    )
    assert outcome.error is ErrorCode.INVALID_CONFIG


def test_a_resource_of_an_unknown_type_is_refused_as_by_kafka(cluster: Cluster) -> None:
    """By a broker as an invalid request, by a controller as something it does not support."""
    resource = setting(77, "x", "a", "b")
    assert alter(cluster, resource) == [
        AlterationOutcome(ErrorCode.INVALID_REQUEST, "Unknown resource type 77")
    ]
    assert direct(cluster, resource) == [
        AlterationOutcome(ErrorCode.UNSUPPORTED_VERSION, "Unknown resource type 77.")
    ]


def test_subscriptions_to_metrics_are_checked(cluster: Cluster) -> None:
    kind = int(ResourceType.CLIENT_METRICS)
    outcomes = alter(
        cluster,
        setting(kind, "s", "interval.ms", "500"),
        setting(kind, "t", "interval.ms", "5"),
        setting(kind, "u", "match", "client_id=("),
        setting(kind, "v", "metrics", "a.,b."),
        setting(kind, "w", "metrics", "a.,b.", ConfigOperation.APPEND),
        setting(kind, "x", "metrics", "a.,b.", ConfigOperation.SUBTRACT),
    )
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
    ]
    assert outcomes[-1].message == "Can't SUBTRACT to key metrics because its type is not LIST."
    assert cluster.image.configs.get((kind, "v")) == {"metrics": "a.,b."}


class NoShortRetention:
    """A policy."""

    def __init__(self) -> None:
        self.asked: list[AlteredConfigs] = []

    def validate(self, altered: AlteredConfigs) -> None:
        self.asked.append(altered)
        if altered.configs.get("retention.ms") == "5":
            raise PolicyViolation("retention is too short")


def test_the_policy_of_the_operator_is_asked_last(cluster: Cluster) -> None:
    policy = NoShortRetention()
    cluster.controller._policies = Policies(alter_config=policy)
    alter(cluster, setting(TOPIC, "t", "segment.bytes", "2000000"))
    (refused, invalid) = alter(
        cluster,
        setting(TOPIC, "t", "retention.ms", "5"),
        setting(TOPIC, "nosuch", "retention.ms", "5"),
    )
    assert refused == AlterationOutcome(ErrorCode.POLICY_VIOLATION, "retention is too short")
    assert invalid.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.image.topic_configs("t") == {"segment.bytes": "2000000"}
    assert [each.configs for each in policy.asked] == [
        {"segment.bytes": "2000000"},
        {"retention.ms": "5"},
    ]
    whole = AlteredResource(TOPIC, "t", [Alteration("retention.ms", None, "6")])
    cluster.run(cluster.controller.alter_configs(Alterations([whole], incremental=False)))
    assert policy.asked[-1] == AlteredConfigs(TOPIC, "t", {"retention.ms": "6"})


def test_a_whole_resource_is_replaced(cluster: Cluster) -> None:
    alter(cluster, setting(TOPIC, "t", "retention.ms", "5"))
    resource = AlteredResource(TOPIC, "t", [Alteration("segment.bytes", None, "2000000")])
    cluster.run(cluster.controller.alter_configs(Alterations([resource], incremental=False)))
    assert cluster.image.topic_configs("t") == {"segment.bytes": "2000000"}


class Compared(str):
    """A text that counts how often it is compared."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("operation", [ConfigOperation.APPEND, ConfigOperation.SUBTRACT])
def test_a_long_list_is_not_compared_with_itself(operation: ConfigOperation) -> None:
    """A value of 1 MB holds 250,000 items: comparing each with all others took minutes."""
    Compared.count = 0
    items: list[str] = [Compared(f"{index}:0") for index in range(5000)]
    operands: list[str] = [Compared(f"{index}:0") for index in range(4000, 9000)]
    altered = _altered_list(items, operation, operands)
    assert len(altered) == (9000 if operation is ConfigOperation.APPEND else 4000)
    assert Compared.count < 20_000


def test_lists_are_altered_item_by_item(cluster: Cluster) -> None:
    def now(value: str, operation: ConfigOperation) -> str:
        alter(cluster, setting(TOPIC, "t", REPLICAS, value, operation))
        return cluster.image.topic_configs("t")[REPLICAS]

    assert now("0:1,1:1", ConfigOperation.APPEND) == "0:1,1:1"
    assert now("1:1,2:1,2:1", ConfigOperation.APPEND) == "0:1,1:1,2:1"
    assert now("1:1,9:1", ConfigOperation.SUBTRACT) == "0:1,2:1"


def test_a_resource_has_not_that_many_settings(cluster: Cluster) -> None:
    many = [Alteration(f"k{index}", 0, "v") for index in range(100_000)]
    (outcome,) = alter(cluster, AlteredResource(TOPIC, "t", many))
    assert outcome.error == ErrorCode.INVALID_REQUEST


def test_no_more_is_written_at_once_than_kafka_does(cluster: Cluster) -> None:
    groups = [
        setting(GROUP, f"g{index}", "consumer.session.timeout.ms", "50000")
        for index in range(10_001)
    ]
    with pytest.raises(KafkaError, match="excessively large batch") as error:
        alter(cluster, *groups)
    assert error.value.code == ErrorCode.POLICY_VIOLATION


def test_error_messages_fit_into_old_responses(cluster: Cluster) -> None:
    """A string of AlterConfigs v0 has at most 32,767 bytes."""
    long_name = "n" * 32_767
    nulls = [Alteration(f"{number}-{long_name[:100]}", 0, None) for number in range(500)]
    outcomes = alter(
        cluster,
        AlteredResource(TOPIC, "t", nulls),
        setting(TOPIC, long_name, "retention.ms", "5"),
        setting(TOPIC, "t", long_name, "5", ConfigOperation.APPEND),
    )
    for outcome in outcomes:
        assert outcome.error and len(outcome.message or "") < 10_000

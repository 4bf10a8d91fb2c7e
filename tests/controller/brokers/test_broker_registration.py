"""BrokerRegistration: which broker may join, in the order of Kafka's checks, and its records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kbroker.controller.result import MAX_REGISTERED_ITEMS, ControllerResult
from kbroker.metadata.records import decode_record, record_version
from kbroker.model import LOST_DIRECTORY
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import BrokerRegistrationRequest
from kbroker.protocol.messages.stored.metadata_records import (
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.controller.cluster import DIRECTORY, ENDPOINTS, Cluster, directory, registration, topic


def written(cluster: Cluster, since: int) -> list[object]:
    return [decode_record(data) for data in cluster.log[since:]]


def register(
    cluster: Cluster,
    request: BrokerRegistrationRequest,
    *,
    kraft_version: int = 1,
    has_valid_session: bool = False,
) -> ControllerResult[int]:
    return at_once(
        cluster.controller.register_broker(
            request, kraft_version=kraft_version, has_valid_session=has_valid_session
        )
    )


def test_a_registration() -> None:
    cluster = Cluster(brokers=())
    since = len(cluster.log)
    assert cluster.register(1) == since
    (record,) = written(cluster, since)
    assert isinstance(record, RegisterBrokerRecord)
    assert record_version(record, 30) == 4
    assert (record.fenced, record.log_dirs, record.cordoned_log_dirs) == (True, [DIRECTORY], None)
    broker = cluster.image.brokers[1]
    assert broker.endpoints == ENDPOINTS
    assert broker.features["metadata.version"] == (7, 30)
    assert cluster.image.usable_brokers() == []
    cluster.beat(1)
    assert [b.id for b in cluster.image.usable_brokers()] == [1]


def test_the_broker_epoch_is_the_offset_of_the_batch() -> None:
    cluster = Cluster(brokers=())
    cluster.controller.next_offset = 41
    result = register(cluster, registration(1))
    assert result.response == 41
    assert not result.atomic


def test_the_records_of_a_clean_up_stand_before_the_registration() -> None:
    """They need not be in one batch with it: if the controller fails between them, the broker
    registers again and the clean-up is repeated.
    """
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2], [2, 1]]))
    since = len(cluster.log)
    cluster.register(1)
    *changes, last = written(cluster, since)
    assert len(changes) == 2 and isinstance(last, RegisterBrokerRecord)


def test_the_same_incarnation_keeps_its_epoch_and_its_state() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]]))
    old = cluster.image.brokers[1]
    again = registration(1, incarnation_id=old.incarnation_id)
    again.rack = "east"
    since = len(cluster.log)
    assert cluster.run(register(cluster, again, has_valid_session=True)) == old.epoch
    assert len(cluster.log) == since + 1
    assert cluster.image.brokers[1] == replace(old, rack="east")


def test_a_broker_that_was_unregistered_is_eligible_nowhere() -> None:
    """Its entry in the ELR has outlived it, but the records may not have."""
    cluster = Cluster(brokers=(1, 2))
    cluster.create(topic("t", assignments=[[1, 2]], configs={"min.insync.replicas": "2"}))
    cluster.run(cluster.controller.unregister_broker(2))
    assert cluster.image.topics["t"].partitions[0].elr == (2,)
    since = len(cluster.log)
    cluster.register(2)
    change, _ = written(cluster, since)
    assert isinstance(change, PartitionChangeRecord)
    assert cluster.image.topics["t"].partitions[0].elr == ()


Change = Callable[[BrokerRegistrationRequest], None]


def without(request: BrokerRegistrationRequest, name: str) -> None:
    request.features = [each for each in request.features if each.name != name]


def with_range(request: BrokerRegistrationRequest, name: str, low: int, high: int) -> None:
    without(request, name)
    request.features.append(
        BrokerRegistrationRequest.Feature(
            name=name, min_supported_version=low, max_supported_version=high
        )
    )


def setting(name: str, value: object) -> Change:
    return lambda request: setattr(request, name, value)


REFUSALS = [
    pytest.param(
        setting("cluster_id", "other"),
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        "Expected cluster ID",
        id="cluster",
    ),
    pytest.param(
        setting("incarnation_id", b"x" * 16),
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        "Another broker is registered",
        id="a live session of another incarnation",
    ),
    pytest.param(
        setting("is_migrating_zk_broker", True),
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "ZK brokers",
        id="ZooKeeper",
    ),
    pytest.param(
        setting("log_dirs", []),
        ErrorCode.INVALID_REGISTRATION,
        "No directories",
        id="no directories",
    ),
    pytest.param(
        setting("log_dirs", [DIRECTORY, LOST_DIRECTORY]),
        ErrorCode.INVALID_REGISTRATION,
        "Reserved directory",
        id="reserved directory",
    ),
    pytest.param(
        setting("log_dirs", [DIRECTORY, DIRECTORY]),
        ErrorCode.INVALID_REGISTRATION,
        "Duplicate directory",
        id="directory twice",
    ),
    pytest.param(
        setting("log_dirs", [DIRECTORY, directory(2)]),
        ErrorCode.INVALID_REGISTRATION,
        "Broker 2 is already registered with directory",
        id="another broker's directory",
    ),
    pytest.param(
        setting("listeners", []),
        ErrorCode.INVALID_REGISTRATION,
        "did not give any endpoint",
        id="no endpoint",
    ),
    pytest.param(
        lambda request: with_range(request, "metadata.version", 7, 29),
        ErrorCode.UNSUPPORTED_VERSION,
        "does not support finalized version 30 of metadata.version",
        id="metadata.version too new for it",
    ),
    pytest.param(
        lambda request: with_range(request, "other.version", 1, 2),
        ErrorCode.UNSUPPORTED_VERSION,
        "does not support finalized version 0 of other.version",
        id="a feature it cannot do without",
    ),
    pytest.param(
        lambda request: without(request, "metadata.version"),
        ErrorCode.INVALID_REGISTRATION,
        "do not contain 'metadata.version'",
        id="no metadata.version",
    ),
    pytest.param(
        lambda request: without(request, "eligible.leader.replicas.version"),
        ErrorCode.UNSUPPORTED_VERSION,
        "does not support finalized version 1 of eligible.leader.replicas.version",
        id="a finalized feature it does not know",
    ),
    pytest.param(
        lambda request: without(request, "kraft.version"),
        ErrorCode.UNSUPPORTED_VERSION,
        "does not support finalized version 1 of kraft.version",
        id="a kraft.version it does not know",
    ),
]


@pytest.mark.parametrize("name", ["listeners", "features", "log_dirs"])
def test_a_registration_of_very_many_items_is_refused(name: str) -> None:
    """It would be one record, which every node encodes, decodes and replays in one turn."""
    request = registration(1)
    setattr(request, name, getattr(request, name)[:1] * (MAX_REGISTERED_ITEMS + 1))
    with pytest.raises(KafkaError, match=f"at most {MAX_REGISTERED_ITEMS}") as caught:
        register(Cluster(brokers=()), request)
    assert caught.value.code is ErrorCode.INVALID_REGISTRATION


@pytest.mark.parametrize(("change", "code", "message"), REFUSALS)
def test_who_may_not_join(change: Change, code: ErrorCode, message: str) -> None:
    cluster = Cluster(brokers=(1, 2))
    request = registration(1, incarnation_id=cluster.image.brokers[1].incarnation_id)
    register(cluster, request, has_valid_session=True)
    change(request)
    with pytest.raises(KafkaError, match=message) as caught:
        register(cluster, request, has_valid_session=True)
    assert caught.value.code is code


def test_the_first_reason_is_the_answer() -> None:
    cluster = Cluster(brokers=(1, 2))
    request = registration(1, incarnation_id=cluster.image.brokers[1].incarnation_id)
    for refusal in reversed(REFUSALS[:8]):
        change, code, message = refusal.values
        change(request)  # type: ignore[operator]  # a row's function
        with pytest.raises(KafkaError, match=str(message)) as caught:
            register(cluster, request, has_valid_session=True)
        assert caught.value.code is code


def test_a_broker_joins_without_directories_below_the_level_that_has_them() -> None:
    cluster = Cluster(brokers=(), elr=False)
    cluster.level(16)
    request = registration(1)
    without(request, "kraft.version")
    request.log_dirs = []
    cluster.run(register(cluster, request, kraft_version=0))
    assert cluster.image.brokers[1].log_dirs == ()

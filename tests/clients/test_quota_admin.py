"""Quotas, SCRAM credentials and ACLs as administrators set them: kafka-configs.sh of Apache Kafka
4.3.1, librdkafka, kafka-python; and a producer and a consumer of librdkafka within their rates.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from kbroker.protocol.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.test_config_command import Configure, configure
from tests.e2e.wire import call

__all__ = ["configure"]  # a fixture

pytestmark = [
    pytest.mark.clients,
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
needs_java = pytest.mark.skipif(java_problem() is not None, reason=java_problem() or "")

RATE = 400_000
RECORD_BYTES = 10_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # short windows: a client may use the rate of one second at once
    overrides = {"quota.window.num": "2"}
    with BrokerProcess(tmp_path_factory.mktemp("quotas") / "data", overrides=overrides) as one:
        yield one


@needs_java
@pytest.mark.parametrize(
    ("entity", "key", "value", "described"),
    [
        (
            ["--entity-type", "users", "--entity-name", "alice"],
            "producer_byte_rate",
            "1048576",
            "Quota configs for user-principal 'alice' are producer_byte_rate=1048576.0",
        ),
        (
            ["--entity-type", "clients", "--entity-default"],
            "request_percentage",
            "150.5",
            "Quota configs for the default client-id are request_percentage=150.5",
        ),
        (
            [
                *("--entity-type", "users", "--entity-name", "alice"),
                *("--entity-type", "clients", "--entity-name", "app"),
            ],
            "controller_mutation_rate",
            "2.5",
            "Quota configs for user-principal 'alice', client-id 'app' are "
            "controller_mutation_rate=2.5",
        ),
        (
            ["--entity-type", "ips", "--entity-name", "10.1.2.3"],
            "connection_creation_rate",
            "20",
            "Quota configs for ip '10.1.2.3' are connection_creation_rate=20.0",
        ),
    ],
)
def test_kafka_configs_sets_describes_and_removes_quotas(
    configure: Configure, entity: list[str], key: str, value: str, described: str
) -> None:
    configure(*entity, "--alter", "--add-config", f"{key}={value}")
    assert described in configure(*entity, "--describe")
    configure(*entity, "--alter", "--delete-config", key)
    assert "Quota configs" not in configure(*entity, "--describe")


@needs_java
def test_kafka_configs_sets_describes_and_removes_credentials(configure: Configure) -> None:
    entity = ["--entity-type", "users", "--entity-name", "carol"]
    value = "SCRAM-SHA-512=[iterations=5000,password=secret]"
    configure(*entity, "--alter", "--add-config", value)
    described = configure(*entity, "--describe")
    assert "for user-principal 'carol' are SCRAM-SHA-512=iterations=5000" in described
    configure(*entity, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "iterations=5000" not in configure(*entity, "--describe")


def test_librdkafka_administers_credentials_and_finds_no_authorizer(broker: BrokerProcess) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    sha_256 = ScramMechanism.SCRAM_SHA_256
    upsertion = UserScramCredentialUpsertion("bob", ScramCredentialInfo(sha_256, 8192), b"secret")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(20)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(20)
    found = [(info.mechanism, info.iterations) for info in described.scram_credential_infos]
    assert found == [(sha_256, 8192)]
    deletion = UserScramCredentialDeletion("bob", sha_256)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(20)
    with pytest.raises(KafkaException, match="does not exist"):
        admin.describe_user_scram_credentials(["bob"])["bob"].result(20)
    acl = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([acl]).values():
        with pytest.raises(KafkaException, match="No Authorizer is configured"):
            future.result(20)


def test_kafka_python_administers_credentials_and_finds_no_authorizer(
    broker: BrokerProcess,
) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
        ResourceType,
    )
    from kafka.errors import SecurityDisabledError

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        described = admin.describe_user_scram_credentials(["dave"])
        assert "does not exist" in described["dave"]["error"]
        pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        with pytest.raises(SecurityDisabledError):
            admin.describe_acls(every)
    finally:
        admin.close()


def test_a_producer_and_a_consumer_are_held_to_their_rates(broker: BrokerProcess) -> None:
    """Within 10 percent, over what follows the first window; a client without a quota is not
    slowed.
    """
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    bootstrap = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("rates", 1, 1)])["rates"].result(20)
    set_rates(broker, "slow", producer=RATE, consumer=RATE)
    count = 4 * RATE // RECORD_BYTES

    def produce(client_id: str) -> float:
        """Seconds for `count` records that do not compress."""
        producer = Producer(
            {"bootstrap.servers": bootstrap, "client.id": client_id, "batch.size": 20_000}
        )
        started = time.monotonic()
        for _ in range(count):
            producer.produce("rates", bytes(RECORD_BYTES), partition=0)
        assert producer.flush(60) == 0
        return time.monotonic() - started

    def consume(client_id: str) -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "group.id": client_id,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition("rates", 0, 0)])
        started = time.monotonic()
        try:
            left = count
            while left:
                left -= len(consumer.consume(min(left, 100), 30))
            return time.monotonic() - started
        finally:
            consumer.close()

    fast_seconds = produce("fast")
    slow_seconds = produce("slow")
    expected = (count * RECORD_BYTES - RATE) / RATE  # the first second's bytes are free
    assert slow_seconds >= 0.9 * expected
    assert slow_seconds <= 1.1 * count * RECORD_BYTES / RATE + fast_seconds
    assert consume("slow") >= 0.9 * expected
    assert consume("fast") < 0.5 * expected


def set_rates(broker: BrokerProcess, client_id: str, *, producer: int, consumer: int) -> None:
    """Over a plain socket, since librdkafka's AdminClient has no quotas."""
    kind = AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[
            kind.OpData(key="producer_byte_rate", value=float(producer)),
            kind.OpData(key="consumer_byte_rate", value=float(consumer)),
        ],
    )
    with socket.create_connection((broker.host, broker.port), timeout=20) as connection:
        response = call(connection, kind(entries=[entry]), 1)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [each.error_code for each in response.entries] == [0]

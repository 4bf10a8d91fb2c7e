"""DescribeConfigs against what a running Kafka 4.3.1 answered to the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.layered_map import LayeredMap
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.replication.time_slices import FairSlices
from kbroker.server.dispatch import logger as dispatch_logger
from kbroker.server.handlers.configs import configs
from kbroker.server.requests import RequestContext
from kbroker.server.services import NodeServices
from kbroker.settings.broker import BrokerConfig
from tests.replication.test_time_slices import Ticks
from tests.sim.timers import SimTimers

Resource = DescribeConfigsRequest.DescribeConfigsResource
DATA = Path(__file__).parents[3] / "data" / "kafka"

CASES: list[dict[str, Any]] = json.loads((DATA / "described-configs.json").read_text())

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/var/lib/kafka",
    "offsets.topic.replication.factor": "1",
    "log.retention.hours": "24",
    "log.segment.bytes": "2097152",
    "my.own.key": "5",
}

IMAGE_CONFIGS = {
    (4, "1"): {"log.cleaner.threads": "2"},
    (4, ""): {
        "log.cleaner.threads": "1",
        "log.retention.ms": "123456",
        "message.max.bytes": "2000000",
        "min.insync.replicas": "1",
    },
    (2, "t1"): {
        "retention.ms": "1000",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "3000000",
    },
    (16, "m"): {"interval.ms": "1000"},
    (32, "g"): {"consumer.session.timeout.ms": "50000"},
}


def services_of(config: BrokerConfig, metadata: Any) -> NodeServices:
    """All that the handler needs; each look at the clock of its slices is a millisecond."""
    timers = SimTimers()
    slices = FairSlices(timers, clock=Ticks())
    return NodeServices(
        config=config,
        node_id=1,
        cluster_id="",
        timers=timers,
        local_controller=None,
        channel=cast(Any, None),
        metadata=metadata,
        slices=slices,
    )


@pytest.fixture(scope="module")
def services() -> NodeServices:
    image = MetadataImage(
        configs=LayeredMap(IMAGE_CONFIGS),
        topics=LayeredMap({"t1": TopicImage("t1", bytes(15) + b"\x07", {})}),
    )
    config = BrokerConfig.from_properties(PROPERTIES)
    metadata = SimpleNamespace(image=image)
    return services_of(config, cast(Any, metadata))


def ask(
    services: NodeServices, *resources: Resource, version: int = 4, synonyms: bool = True
) -> Any:
    request = DescribeConfigsRequest(resources=list(resources), include_synonyms=synonyms)
    context = RequestContext(ApiKey.DESCRIBE_CONFIGS, version)
    outcome = configs.handle_describe_configs(services, context, request)
    if isinstance(outcome, Deferred):
        while not outcome.done:
            cast(SimTimers, services.timers).advance(0)
        outcome = outcome.value
    response = cast(DescribeConfigsResponse, outcome)
    decoded, _ = decode(DescribeConfigsResponse, encode(response, version), version)
    return decoded


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['type']}-{case['name']}")
def test_as_kafka_answers(services: NodeServices, case: dict[str, Any]) -> None:
    resource = Resource(
        resource_type=case["type"],
        resource_name=case["name"],
        configuration_keys=case["keys"],
    )
    (result,) = ask(services, resource).results
    assert (result.resource_type, result.resource_name) == (case["type"], case["name"])
    assert result.error_code == case["error"]
    if case["type"] not in (0, 99):
        assert result.error_message == case["message"]
    answered = {
        entry.name: [
            entry.name,
            entry.value,
            entry.config_source,
            entry.config_type,
            entry.read_only,
            entry.is_sensitive,
            [[synonym.name, synonym.value, synonym.source] for synonym in entry.synonyms],
        ]
        for entry in result.configs
    }
    expected = {entry[0]: entry for entry in case["configs"]}
    whole = case["name"] != "1"
    for name, entry in expected.items():
        if name == "listener.security.protocol.map":
            continue
        assert answered[name] == entry or name in SINGLE_NODE, name
    if whole:
        assert answered.keys() == expected.keys()


SINGLE_NODE = ("offsets.topic.replication.factor",)
"""Where a default differs because one broker is the whole cluster."""


def test_every_key_of_the_broker_is_there(services: NodeServices) -> None:
    (result,) = ask(services, Resource(resource_type=4, resource_name="1")).results
    facts = json.loads((DATA / "broker-configs.json").read_text())["configs"]
    expected = {fact["name"] for fact in facts if not fact.get("internal")}
    assert {entry.name for entry in result.configs} == expected | {
        "my.own.key",
        "kbroker.auto.create.topics.per.request",
        "kbroker.group.max.pending.members",
        "kbroker.group.members.max.bytes",
        "kbroker.list.offsets.max.bytes",
        "kbroker.connection.queued.bytes",
        "kbroker.descriptor.reserve",
        "kbroker.memory.limit.bytes",
        "kbroker.response.max.bytes",
        "kbroker.telemetry.receiver",
        "kbroker.metrics.listener",
        "kbroker.metrics.max.series",
        "kbroker.validate.records",
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_versions(services: NodeServices, version: int) -> None:
    response = ask(services, Resource(resource_type=2, resource_name="t1"), version=version)
    entries = {entry.name: entry for entry in response.results[0].configs}
    assert entries["retention.ms"].value == "1000"
    assert entries["retention.ms"].config_type == (5 if version >= 3 else 0)
    assert entries["retention.ms"].documentation == (None if version >= 3 else "")


def test_without_synonyms(services: NodeServices) -> None:
    resource = Resource(resource_type=2, resource_name="t1")
    response = ask(services, resource, synonyms=False)
    assert all(not entry.synonyms for entry in response.results[0].configs)
    assert {entry.config_source for entry in response.results[0].configs} == {1, 3, 5}


def test_one_bad_resource_harms_no_other(services: NodeServices) -> None:
    response = ask(
        services,
        Resource(resource_type=2, resource_name="gone"),
        Resource(resource_type=2, resource_name="t1", configuration_keys=["segment.bytes"]),
    )
    gone, there = response.results
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [entry.value for entry in there.configs] == ["3000000"]


def test_passwords_are_never_shown() -> None:
    config = BrokerConfig.from_properties({"ssl.key.password": "hunter2"})
    image = MetadataImage(configs=LayeredMap({(4, ""): {"ssl.keystore.password": "hunter2"}}))
    services = services_of(config, SimpleNamespace(image=image))
    for name in ("1", ""):
        response = ask(services, Resource(resource_type=4, resource_name=name))
        assert "hunter2" not in repr(response)


def test_broker_loggers(services: NodeServices) -> None:
    (result,) = ask(services, Resource(resource_type=8, resource_name="1")).results
    entries = {entry.name: entry for entry in result.configs}
    assert "root" in entries
    assert entries[dispatch_logger.name].config_source == 6
    assert {entry.value for entry in result.configs} <= {
        "TRACE",
        "DEBUG",
        "INFO",
        "WARN",
        "ERROR",
        "FATAL",
    }


def test_error_for_the_whole_request() -> None:
    request = DescribeConfigsRequest(resources=[Resource(resource_type=2, resource_name="t")])
    response = configs.describe_configs_error(request, ErrorCode.UNKNOWN_SERVER_ERROR, "oh")
    assert [(item.error_code, item.error_message) for item in response.results] == [(-1, "oh")]


def test_version_0_says_what_is_a_default(services: NodeServices) -> None:
    response = ask(services, Resource(resource_type=2, resource_name="t1"), version=0)
    defaults = {entry.name: entry.is_default for entry in response.results[0].configs}
    overridden = IMAGE_CONFIGS[(2, "t1")]
    assert {name for name in overridden if defaults[name]} == set()
    assert defaults["flush.ms"]
    later = ask(services, Resource(resource_type=2, resource_name="t1"), version=1)
    assert not any(entry.is_default for entry in later.results[0].configs)


# What one request may cost


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is looked up, one entry each time."""
    made: list[str] = []

    def counted(name: str) -> None:
        whole = getattr(configs, name)

        def describe(*arguments: Any) -> Any:
            made.append(name)
            return whole(*arguments)

        monkeypatch.setattr(configs, name, describe)

    for name in ("describe_broker", "describe_topic", "describe_group"):
        counted(name)
    return made


def test_a_resource_named_again_is_described_once(
    services: NodeServices, described: list[str]
) -> None:
    """20 KB that named one broker 4,000 times became 545 MiB."""
    response = ask(services, *[Resource(resource_type=4, resource_name="1")] * 4000)
    assert described == ["describe_broker"]
    assert len(response.results) == 1


def test_the_keys_of_a_resource_named_again_are_put_together(services: NodeServices) -> None:
    def names(*keys: list[str] | None) -> set[str]:
        resources = [
            Resource(resource_type=2, resource_name="t1", configuration_keys=each) for each in keys
        ]
        (result,) = ask(services, *resources).results
        return {entry.name for entry in result.configs}

    assert names(["segment.bytes"], ["retention.ms"]) == {"segment.bytes", "retention.ms"}
    assert len(names(["segment.bytes"], None)) == len(names(None)) > 20


@pytest.mark.parametrize("name", ["01", "+1", " 1", "1_0", "٣"])
@pytest.mark.parametrize("kind", [4, 8])
def test_a_broker_id_has_one_spelling(services: NodeServices, kind: int, name: str) -> None:
    """Each further zero would be another resource, and the whole answer once more."""
    (result,) = ask(services, Resource(resource_type=kind, resource_name=name)).results
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_many_resources_are_described_in_slices(
    services: NodeServices, described: list[str]
) -> None:
    resources = [Resource(resource_type=32, resource_name=f"g{index}") for index in range(50)]
    request = DescribeConfigsRequest(resources=resources)
    context = RequestContext(ApiKey.DESCRIBE_CONFIGS, 4)
    outcome = configs.handle_describe_configs(services, context, request)
    assert isinstance(outcome, Deferred)
    done = len(described)
    assert done < 10
    outcome.cancel()  # as the connection does when it is gone
    cast(SimTimers, services.timers).advance(0)
    assert len(described) == done
    assert services.memory.used == 0


def test_an_answer_has_a_bound(described: list[str]) -> None:
    """Any name is a group: 250,000 of them fit into a request of 1 MB."""
    config = BrokerConfig.from_properties(PROPERTIES | {"kbroker.response.max.bytes": "100000"})
    services = services_of(config, SimpleNamespace(image=MetadataImage()))
    resources = [Resource(resource_type=32, resource_name=f"g{index}") for index in range(500)]
    results = ask(services, *resources).results
    assert [result.resource_name for result in results] == [f"g{index}" for index in range(500)]
    codes = [result.error_code for result in results]
    answered = codes.count(ErrorCode.NONE)
    assert 5 < answered < 100
    assert codes == [ErrorCode.NONE] * answered + [ErrorCode.POLICY_VIOLATION] * (500 - answered)
    assert len(described) == answered + 1
    assert services.memory.used == 0


def test_keys_that_are_asked_for_are_looked_up_by_name(services: NodeServices) -> None:
    """A request of 1 MB holds a million keys; each entry must not be compared with all of them."""

    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

    keys: list[str] = [Counted(f"k{index}") for index in range(10_000)]
    request = DescribeConfigsRequest(
        resources=[Resource(resource_type=2, resource_name="t1", configuration_keys=keys)]
    )
    context = RequestContext(ApiKey.DESCRIBE_CONFIGS, 4)
    configs.handle_describe_configs(services, context, request)
    assert Counted.compared < 1000

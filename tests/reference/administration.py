"""The conversation about administration with odd requests: paging of DescribeTopicPartitions,
settings of brokers, loggers and client metrics, features, and resources that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
)
from kbroker.protocol.messages.admin.quotas import AlterClientQuotasRequest
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.messages.cluster import UnregisterBrokerRequest, UpdateFeaturesRequest
from kbroker.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
)
from kbroker.protocol.messages.quorum import DescribeQuorumRequest
from tests.reference.alter_configs import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    METRICS,
    SET,
    SUBTRACT,
    TOPIC,
    Change,
    alter,
    describe,
)
from tests.reference.step import UNKNOWN_ID, State, Step

LOGGER = 8
Pages = DescribeTopicPartitionsRequest


def topic_steps() -> Iterator[Step]:
    kind = CreateTopicsRequest
    names = ("a", "b", "c", "d")
    topics = [
        kind.CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in names
    ]
    yield Step("topics", 7, lambda _: kind(topics=topics, timeout_ms=9000), awaits=names)
    twice = [
        kind.CreatableTopicConfig(name="retention.ms", value=value) for value in ("1000", "2000")
    ]
    odd: Mapping[str, dict[str, Any]] = {
        "a setting twice": {"configs": twice},
        "a setting without a name": {
            "configs": [kind.CreatableTopicConfig(name="", value="1")],
        },
        "an empty value": {"configs": [kind.CreatableTopicConfig(name="retention.ms", value="")]},
        "replicas -2": {"replication_factor": -2},
        "a partition twice": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                kind.CreatableReplicaAssignment(partition_index=0, broker_ids=[1]) for _ in range(2)
            ],
        },
        "a negative partition": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [kind.CreatableReplicaAssignment(partition_index=-1, broker_ids=[1])],
        },
        "no replicas": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [kind.CreatableReplicaAssignment(partition_index=0, broker_ids=[])],
        },
    }
    for name, fields in odd.items():
        fields = {"name": "odd", "num_partitions": 1, "replication_factor": 1, **fields}
        topic = kind.CreatableTopic(**fields)
        yield Step(
            f"create with {name}",
            7,
            lambda _, topic=topic: kind(topics=[topic], timeout_ms=9000, validate_only=True),
        )


def page_steps() -> Iterator[Step]:
    def page(
        *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
    ) -> Callable[[State], Message]:
        request = Pages(
            topics=[Pages.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None
            if cursor is None
            else Pages.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
        return lambda _: request

    abcd = ("d", "b", "a", "c")
    yield Step("page: everything", 0, page(cursor=("a", 0)))
    for limit in (-1, 0, 1, 3, 4, 12, 13, 5000):
        yield Step(f"page: limit {limit}", 0, page(*abcd, limit=limit))
    cursors = {
        "within a topic": ("b", 1),
        "the last partition": ("d", 2),
        "beyond the partitions": ("b", 7),
        "beyond the last topic": ("e", 0),
        "before the first topic": ("A", 1),
        "of an unknown topic": ("bb", 1),
        "without a topic": ("", 0),
        "of a negative partition": ("b", -1),
        "of a topic with a bad name": ("b b", 0),
    }
    for name, cursor in cursors.items():
        yield Step(f"page: cursor {name}", 0, page(*abcd, limit=4, cursor=cursor))
    yield Step("page: only earlier topics", 0, page("a", "b", cursor=("c", 0)))
    yield Step("page: a topic twice", 0, page("a", "a"))
    for wrong in ("", "bad name", "nosuch"):
        yield Step(f"page: {wrong!r}", 0, page(wrong, "b"))
        yield Step(f"page: {wrong!r} and a limit", 0, page(wrong, "b", "c", limit=1))
    yield Step("page: unknown at the cursor", 0, page("nosuch", "z", cursor=("nosuch", 1)))


def cluster_steps() -> Iterator[Step]:
    for kind in (1, 2, 0, -1):
        request = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=True)
        yield Step(f"cluster: fenced, {kind}", 2, lambda _, request=request: request)
    for broker in (99, -1):
        yield Step(
            f"unregister {broker}",
            0,
            lambda _, broker=broker: UnregisterBrokerRequest(broker_id=broker),
        )
    quorum = DescribeQuorumRequest
    for name, index in (("nosuch", 0), ("__cluster_metadata", 1), ("", 0)):
        topic = quorum.TopicData(
            topic_name=name, partitions=[quorum.PartitionData(partition_index=index)]
        )
        for version in (0, 2):
            yield Step(
                f"quorum of {name!r} {index} v{version}",
                version,
                lambda _, topic=topic: quorum(topics=[topic]),
            )
    yield Step("quorum of nothing", 2, lambda _: quorum())
    yield Step(
        "quorum of no partitions",
        2,
        lambda _: quorum(topics=[quorum.TopicData(topic_name="__cluster_metadata")]),
    )


def feature_steps() -> Iterator[Step]:
    kind = UpdateFeaturesRequest

    def update(
        *updates: tuple[str, int, int], validate_only: bool = True
    ) -> Callable[[State], Message]:
        asked = [
            kind.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how)
            for name, level, how in updates
        ]
        return lambda _: kind(feature_updates=asked, validate_only=validate_only)

    metadata = "metadata.version"
    wanted: Mapping[str, tuple[tuple[str, int, int], ...]] = {
        "nothing": (),
        "unknown": (("nosuch", 1, 1),),
        "without a name": (("", 1, 1),),
        "the same": ((metadata, 30, 1),),
        "too high": ((metadata, 99, 1),),
        "too low": ((metadata, 1, 1),),
        "negative": ((metadata, -1, 1),),
        "downgrade as upgrade": ((metadata, 29, 1),),
        "downgrade": ((metadata, 29, 2),),
        "downgrade that loses": ((metadata, 7, 2),),
        "unsafe downgrade": ((metadata, 29, 3),),
        "deleted": ((metadata, 0, 2),),
        "unknown type": ((metadata, 30, 0),),
        "type 9": (("group.version", 1, 9),),
        "upgrade as downgrade": (("transaction.version", 2, 2),),
        "twice": (("group.version", 1, 1), ("group.version", 1, 1)),
        "group version 0": (("group.version", 0, 2),),
        "group version 2": (("group.version", 2, 1),),
        "kraft version 2": (("kraft.version", 2, 1),),
        "one of two": (("group.version", 1, 1), ("nosuch", 1, 1)),
    }
    for name, updates in wanted.items():
        for version in (1, 2):
            yield Step(f"feature: {name} v{version}", version, update(*updates))
    old = kind.FeatureUpdateKey(feature=metadata, max_version_level=29)
    yield Step("feature: v0", 0, lambda _: kind(feature_updates=[old]))


def describe_steps() -> Iterator[Step]:
    for kind, names in {
        TOPIC: ("",),
        BROKER: ("01", "+1", " 1", "-1", "1.0", "99999999999"),
        LOGGER: ("", "x", "99", "01"),
        METRICS: ("", "nosuch"),
        GROUP: ("", "nosuch"),
        0: ("",),
        1: ("",),
    }.items():
        for name in names:
            yield Step(f"configs of {kind} {name!r}", 4, describe(kind, name, "nosuch"))
    resource = DescribeConfigsRequest.DescribeConfigsResource
    keys = {"no keys": [], "a key twice": ["retention.ms", "retention.ms"], "an empty key": [""]}
    for name, asked in keys.items():
        one = resource(resource_type=TOPIC, resource_name="a", configuration_keys=asked)
        yield Step(
            f"configs, {name}", 4, lambda _, one=one: DescribeConfigsRequest(resources=[one])
        )
    two = [
        resource(resource_type=TOPIC, resource_name="a", configuration_keys=["retention.ms"]),
        resource(resource_type=TOPIC, resource_name="a", configuration_keys=["segment.ms"]),
    ]
    yield Step("configs of a resource twice", 4, lambda _: DescribeConfigsRequest(resources=two))
    yield Step("configs of nothing", 4, lambda _: DescribeConfigsRequest())
    yield Step("configs of the default broker", 4, describe(BROKER, ""))


def broker_steps() -> Iterator[Step]:
    retention, policy = "log.retention.ms", "log.cleanup.policy"
    refused: Mapping[str, tuple[str, tuple[Change, ...]]] = {
        "null": ("1", ((retention, SET, None),)),
        "twice": ("1", ((retention, SET, "1000"), (retention, SET, "2000"))),
        "set and deleted": ("1", ((retention, SET, "1000"), (retention, DELETE, None))),
        "of an unknown broker": ("99", ((retention, SET, "1000"),)),
        "of no number": ("x", ((retention, SET, "1000"),)),
        "read-only": ("1", (("num.partitions", SET, "2"),)),
        "read-only by default": ("", (("log.dirs", SET, "/x"),)),
        "read-only deleted": ("1", (("num.partitions", DELETE, None),)),
        "of one broker by default": ("", (("listeners", SET, "PLAINTEXT://:9"),)),
        "appended to a number": ("1", ((retention, APPEND, "1000"),)),
        "subtracted from a number": ("", (("max.connections", SUBTRACT, "1"),)),
        "no number": ("", ((retention, SET, "soon"),)),
        "empty": ("", ((retention, SET, ""),)),
        "nothing of a list": ("", ((policy, SET, "burn"),)),
        "operation 9": ("", ((retention, 9, "1"),)),
        "operation -1": ("", ((retention, -1, "1"),)),
        "a higher synonym": ("", (("log.retention.hours", SET, "1"),)),
        "one of two": ("", ((retention, SET, "9000"), ("max.connections", SET, "-5"))),
        "cleaner": ("", (("log.cleaner.threads", SET, "0"),)),
        "load factor": ("", (("log.cleaner.io.buffer.load.factor", SET, "x"),)),
        "overrides": ("", (("max.connections.per.ip.overrides", SET, "nosuch.invalid:x"),)),
        "overrides without a number": (
            "",
            (("max.connections.per.ip.overrides", SET, "127.0.0.1"),),
        ),
        "compression": ("", (("compression.type", SET, "rar"),)),
        "a level": ("", (("compression.gzip.level", SET, "11"),)),
        "timestamp type": ("", (("log.message.timestamp.type", SET, "Never"),)),
        "a listener that is none": ("", (("listener.name.nosuch.max.connections", SET, "5"),)),
        "no name": ("", (("", SET, "5"),)),
        "of 01": ("01", ((retention, SET, "soon"),)),
        "of +1": ("+1", ((retention, SET, "soon"),)),
        "of -0": ("-0", ((retention, SET, "soon"),)),
    }
    for name, (broker, changes) in refused.items():
        yield Step(f"broker, {name}", 1, alter(BROKER, broker, *changes))
    yield Step(
        "broker, validated", 1, alter(BROKER, "1", (retention, SET, "5000"), validate_only=True)
    )
    yield Step("broker, validated told", 4, describe(BROKER, "1", retention))
    yield Step("broker, a resource twice", 1, alter(BROKER, "1", (retention, SET, "5000"), times=2))
    yield Step("broker, appended", 1, alter(BROKER, "", (policy, APPEND, "compact")))
    yield Step("broker, appended told", 4, describe(BROKER, "", policy))
    yield Step("broker, subtracted", 1, alter(BROKER, "", (policy, SUBTRACT, "compact,nosuch")))
    yield Step("broker, subtracted told", 4, describe(BROKER, "", policy))
    yield Step("broker, deleted", 1, alter(BROKER, "", (policy, DELETE, None)))
    for name, version in (("1", 2), ("", 1), ("99", 2), ("x", 2)):
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER,
            resource_name=name,
            configs=[AlterConfigsRequest.AlterableConfig(name=retention, value="7000")],
        )
        yield Step(
            f"broker replaced {name!r}",
            version,
            lambda _, resource=resource: AlterConfigsRequest(
                resources=[resource], validate_only=True
            ),
        )


def logger_steps() -> Iterator[Step]:
    root = "root"
    for name, (broker, changes) in {
        "unknown level": ("1", ((root, SET, "LOUD"),)),
        "lower case": ("1", ((root, SET, "info"),)),
        "null": ("1", ((root, SET, None),)),
        "empty": ("1", ((root, SET, ""),)),
        "appended": ("1", ((root, APPEND, "INFO"),)),
        "unknown": ("1", (("no.such", SET, "INFO"),)),
        "unknown deleted": ("1", (("no.such", DELETE, None),)),
        "no name": ("1", (("", SET, "INFO"),)),
        "no broker": ("", ((root, SET, "INFO"),)),
        "no number": ("x", ((root, SET, "INFO"),)),
        "twice": ("1", ((root, SET, "INFO"), (root, SET, "INFO"))),
        "set and deleted": ("1", ((root, SET, "INFO"), (root, DELETE, None))),
        "nothing": ("1", ()),
    }.items():
        yield Step(f"logger, {name}", 1, alter(LOGGER, broker, *changes))
    yield Step("logger, validated", 1, alter(LOGGER, "1", (root, SET, "LOUD"), validate_only=True))
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=LOGGER,
        resource_name="1",
        configs=[AlterConfigsRequest.AlterableConfig(name=root, value="INFO")],
    )
    yield Step("logger replaced", 2, lambda _: AlterConfigsRequest(resources=[resource]))


def operation_steps() -> Iterator[Step]:
    """An operation that does not exist is only asked of a broker's own settings: for any other
    resource the active controller of Kafka fails, and resigns.
    """
    for kind, name, key in (
        (TOPIC, "a", "retention.ms"),
        (GROUP, "g", "consumer.session.timeout.ms"),
        (METRICS, "m", "interval.ms"),
        (LOGGER, "1", "root"),
        (BROKER, "1", "no.such"),
    ):
        for operation in (APPEND, SUBTRACT):
            asked = alter(kind, name, (key, operation, "1"), validate_only=True)
            yield Step(f"operation {operation} on {kind}", 1, asked)


def metrics_steps() -> Iterator[Step]:
    for name, (subscription, changes) in {
        "no name": ("", (("interval.ms", SET, "1000"),)),
        "unknown": ("m", (("nosuch", SET, "1"),)),
        "unknown deleted": ("m", (("nosuch", DELETE, None),)),
        "short": ("m", (("interval.ms", SET, "99"),)),
        "long": ("m", (("interval.ms", SET, "3600001"),)),
        "no number": ("m", (("interval.ms", SET, "often"),)),
        "null": ("m", (("interval.ms", SET, None),)),
        "unknown match": ("m", (("match", SET, "nosuch=.*"),)),
        "malformed match": ("m", (("match", SET, "client_id"),)),
        "malformed pattern": ("m", (("match", SET, "client_id=("),)),
        "appended number": ("m", (("interval.ms", APPEND, "1000"),)),
        "no metrics": ("m", (("metrics", SET, ""),)),
        "all metrics": ("m", (("metrics", SET, "*"),)),
        "a comma": ("m", (("metrics", SET, ","),)),
        "twice": ("m", (("metrics", SET, "a"), ("metrics", SET, "b"))),
    }.items():
        yield Step(
            f"metrics, {name}", 1, alter(METRICS, subscription, *changes, validate_only=True)
        )
    yield Step(
        "metrics, set", 1, alter(METRICS, "m", ("metrics", SET, "a"), ("match", SET, "client_id=x"))
    )
    yield Step(
        "metrics, appended",
        1,
        alter(METRICS, "m", ("metrics", APPEND, "b,c"), ("metrics", SET, "d")),
    )
    yield Step("metrics, appended alone", 1, alter(METRICS, "m", ("metrics", APPEND, "b,c,a")))
    yield Step("metrics, told", 4, describe(METRICS, "m"))
    yield Step("metrics, subtracted", 1, alter(METRICS, "m", ("metrics", SUBTRACT, "a,b,c,d")))
    yield Step("metrics, subtracted told", 4, describe(METRICS, "m"))


def quota_steps() -> Iterator[Step]:
    kind = AlterClientQuotasRequest

    def change(
        parts: list[tuple[str, str | None]], *ops: tuple[str, float, bool]
    ) -> Callable[[State], Message]:
        entry = kind.EntryData(
            entity=[kind.EntityData(entity_type=each, entity_name=name) for each, name in parts],
            ops=[kind.OpData(key=key, value=value, remove=remove) for key, value, remove in ops],
        )
        return lambda _: kind(entries=[entry])

    rate = "producer_byte_rate"
    user: list[tuple[str, str | None]] = [("user", "odd")]
    yield Step("quota, set and removed", 1, change(user, (rate, 5.0, False), (rate, 0.0, True)))
    yield Step("quota, removed and set", 1, change(user, (rate, 0.0, True), (rate, 5.0, False)))
    yield Step("quota, set twice", 1, change(user, (rate, 5.0, False), (rate, 6.0, False)))
    for value in (float("nan"), float("inf"), -1.0, 1e-9):
        yield Step(f"quota, {value}", 1, change(user, (rate, value, False)))
        percentage = ("request_percentage", value, False)
        yield Step(f"quota, percentage {value}", 1, change([("user", "p")], percentage))
    yield Step(
        "quota, an unknown and a known key", 1, change(user, (rate, 7.0, False), ("x", 1.0, False))
    )
    yield Step("quota, no key", 1, change(user, ("", 7.0, False)))
    yield Step("quota, a type twice", 1, change([("user", "a"), ("user", "b")], (rate, 7.0, False)))
    yield Step("quota, no type", 1, change([("", "a")], (rate, 7.0, False)))
    connections = ("connection_creation_rate", 5.0, False)
    for name in ("nosuch.invalid", "", "::1", "300.1.1.1", "127.0.0.1 "):
        yield Step(f"quota, ip {name!r}", 1, change([("ip", name)], connections))
    yield Step("quota, nothing", 1, lambda _: kind())


def end_steps() -> Iterator[Step]:
    kind = DeleteTopicsRequest
    state = kind.DeleteTopicState

    def delete(*topics: DeleteTopicsRequest.DeleteTopicState) -> Callable[[State], Message]:
        return lambda _: kind(topics=list(topics), timeout_ms=9000)

    yield Step("delete, no name", 6, delete(state(name="")))
    yield Step("delete, null", 6, delete(state(name=None)))
    yield Step("delete, name and id", 6, delete(state(name="a", topic_id=UNKNOWN_ID)))
    yield Step(
        "delete, an id twice",
        6,
        delete(state(name=None, topic_id=UNKNOWN_ID), state(name=None, topic_id=UNKNOWN_ID)),
    )
    yield Step("delete, nothing", 6, delete())
    yield Step("delete, v3 twice", 3, lambda _: kind(topic_names=["b", "b"], timeout_ms=9000))
    yield Step("delete, a bad name", 6, delete(state(name="bad name")))


def administration_steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (
        topic_steps,
        page_steps,
        cluster_steps,
        feature_steps,
        describe_steps,
        broker_steps,
        logger_steps,
        operation_steps,
        metrics_steps,
        quota_steps,
        end_steps,
    ):
        yield from part()

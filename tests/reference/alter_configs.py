"""The part of the conversation that alters settings of topics and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from tests.reference.step import State, Step

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, int, str | None]


def alter(
    kind: int, name: str, *changes: Change, validate_only: bool = False, times: int = 1
) -> Callable[[State], Message]:
    config = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            config(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    return lambda _: IncrementalAlterConfigsRequest(
        resources=[resource] * times, validate_only=validate_only
    )


def replace(kind: int, name: str, **values: str | None) -> Callable[[State], Message]:
    config = AlterConfigsRequest.AlterableConfig
    configs = [config(name=key.replace("_", "."), value=value) for key, value in values.items()]
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    return lambda _: AlterConfigsRequest(resources=[resource])


def describe(kind: int, name: str, *keys: str) -> Callable[[State], Message]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    return lambda _: DescribeConfigsRequest(resources=[resource], include_synonyms=True)


def group_steps() -> Iterator[Step]:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    yield Step("group settings", 4, describe(GROUP, "gs"))
    yield Step(
        "group settings dry", 1, alter(GROUP, "gs", (session, SET, "46000"), validate_only=True)
    )
    yield Step("group settings after dry", 4, describe(GROUP, "gs", session))
    for version in (0, 1):
        number = f"{46000 + version}"
        yield Step(f"group setting v{version}", version, alter(GROUP, "gs", (session, SET, number)))
    yield Step("group setting told", 4, describe(GROUP, "gs", session, heartbeat))
    refused: dict[str, tuple[Change, ...]] = {
        "unknown": (("consumer.no.such", SET, "1"),),
        "no number": ((session, SET, "soon"),),
        "negative": ((session, SET, "-1"),),
        "too low": ((session, SET, "44999"),),
        "too high": ((session, SET, "60001"),),
        "heartbeat too low": ((heartbeat, SET, "4999"),),
        "heartbeat too high": ((heartbeat, SET, "15001"),),
        "interval too high": (("consumer.assignment.interval.ms", SET, "15001"),),
        "append": ((session, APPEND, "1"),),
        "subtract unknown": (("no.such", SUBTRACT, "1"),),
        "null": ((session, SET, None),),
        "nulls": ((session, SET, None), (heartbeat, APPEND, None)),
        "twice": ((session, SET, "50000"), (session, SET, "51000")),
        "share locks": (("share.record.lock.duration.ms", SET, "14999"),),
        "share reset": (("share.auto.offset.reset", SET, "sometimes"),),
        "share reset duration": (("share.auto.offset.reset", SET, "by_duration:P1X"),),
        "share reset negative": (("share.auto.offset.reset", SET, "by_duration:-PT1H"),),
        "streams standbys": (("streams.num.standby.replicas", SET, "3"),),
        "one of two": ((session, SET, "50000"), (heartbeat, SET, "1")),
    }
    for name, changes in refused.items():
        yield Step(f"group setting refused: {name}", 1, alter(GROUP, "gs", *changes))
    yield Step("group setting without a group", 1, alter(GROUP, "", (session, SET, "50000")))
    yield Step("group named twice", 1, alter(GROUP, "gs", (session, SET, "50000"), times=2))
    yield Step("group delete unknown", 1, alter(GROUP, "gs", ("no.such", DELETE, None)))
    yield Step("group setting as before", 4, describe(GROUP, "gs", session))
    yield Step(
        "group share reset",
        1,
        alter(GROUP, "gs", ("share.auto.offset.reset", SET, "by_duration:PT1H")),
    )
    yield Step("group replaced", 2, replace(GROUP, "gs", consumer_heartbeat_interval_ms="6000"))
    yield Step(
        "group replaced told",
        4,
        describe(GROUP, "gs", session, heartbeat, "share.auto.offset.reset"),
    )
    yield Step(
        "list group settings", 1, lambda _: ListConfigResourcesRequest(resource_types=[GROUP])
    )
    yield Step("group delete", 1, alter(GROUP, "gs", (heartbeat, DELETE, None)))
    yield Step("group deleted told", 4, describe(GROUP, "gs", session, heartbeat))
    yield Step("list no settings", 1, lambda _: ListConfigResourcesRequest(resource_types=[GROUP]))


def topic_steps() -> Iterator[Step]:
    retention, policy = "retention.ms", "cleanup.policy"
    yield Step("topic setting", 1, alter(TOPIC, "t1", (retention, SET, "86400000")))
    yield Step("topic setting told", 4, describe(TOPIC, "t1", retention, policy))
    yield Step("topic append", 1, alter(TOPIC, "t1", (policy, APPEND, "compact")))
    yield Step("topic append again", 1, alter(TOPIC, "t1", (policy, APPEND, "compact,delete")))
    yield Step("topic append told", 4, describe(TOPIC, "t1", retention, policy))
    yield Step("topic subtract", 1, alter(TOPIC, "t1", (policy, SUBTRACT, "delete,nosuch")))
    yield Step("topic subtract told", 4, describe(TOPIC, "t1", policy))
    refused: dict[str, tuple[Change, ...]] = {
        "unknown": (("no.such", SET, "1"),),
        "no number": ((retention, SET, "long"),),
        "choice": ((policy, SET, "burn"),),
        "append to number": ((retention, APPEND, "1"),),
        "append nonsense": ((policy, APPEND, "burn"),),
        "null": ((retention, SET, None),),
        "tiered": (("remote.storage.enable", SET, "true"),),
        "lag": (("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
    }
    for name, changes in refused.items():
        yield Step(f"topic setting refused: {name}", 1, alter(TOPIC, "t1", *changes))
    for name in ("nosuch", "bad name", ""):
        yield Step(f"topic setting of {name!r}", 1, alter(TOPIC, name, (retention, SET, "1")))
    yield Step("topic replaced", 2, replace(TOPIC, "t1", retention_ms="777"))
    yield Step("topic replaced v0", 0, replace(TOPIC, "t1", retention_ms="777"))
    yield Step("topic replaced by null", 1, replace(TOPIC, "t1", retention_ms=None))
    yield Step("topic replaced told", 4, describe(TOPIC, "t1", retention, policy))
    yield Step("topic bare", 2, replace(TOPIC, "t1"))
    yield Step("topic bare told", 4, describe(TOPIC, "t1", retention, policy))
    yield Step("alter nothing", 1, lambda _: IncrementalAlterConfigsRequest())
    yield Step("alter type 77", 1, alter(77, "x", ("a", SET, "b")))
    yield Step("alter type 0", 1, alter(0, "x", ("a", SET, "b")))
    yield Step("replace type 77", 2, replace(77, "x", a="b"))


def list_steps() -> Iterator[Step]:
    yield Step("list resources v0", 0, lambda _: ListConfigResourcesRequest())
    for kinds in ([BROKER], [8], [TOPIC, BROKER], [METRICS], [77], [0]):
        yield Step(
            f"list resources {kinds}",
            1,
            lambda _, kinds=kinds: ListConfigResourcesRequest(resource_types=kinds),
        )


def alter_config_steps() -> Iterator[Step]:
    for part in (group_steps, topic_steps, list_steps):
        yield from part()

"""What Apache Kafka 4.3.1's controller decided for thousands of drawn states, and how a test
compares every line of a file (tests/data/decisions) with kbroker's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.metadata.configs import TopicSettings
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    TOPIC_RESOURCE,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.metadata.records import record_version
from kbroker.model import uuid_from_string, uuid_to_string
from kbroker.protocol.codecs.message_json import to_json
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.stored.metadata_records import PartitionChangeRecord
from kbroker.settings.broker import BrokerConfig
from tests.decisions import Case, cases

SHOWN_LINES: Final = 5


def compare(
    name: str,
    count: int,
    decide: Callable[[Case], object],
    expected: Callable[[Case], object],
    *,
    select: Callable[[Case], bool] = lambda _: True,
) -> None:
    """Fail with the numbers of the lines whose decision is not the expected one. count: how many
    lines are selected, so that a file that was cut short does not pass.
    """
    compared, wrong = 0, []
    for number, case in cases(name):
        if not select(case):
            continue
        compared += 1
        got, wanted = decide(case), expected(case)
        if got != wanted:
            wrong.append(f"{name} line {number}: expected {wanted}\n  but decided {got}")
    assert not wrong, f"{len(wrong)} lines differ\n" + "\n".join(wrong[:SHOWN_LINES])
    assert compared == count


def partition_image(fields: Case) -> PartitionImage:
    """A PartitionRegistration as the files show it."""
    return PartitionImage(
        replicas=tuple(fields["replicas"]),
        directories=tuple(uuid_from_string(each) for each in fields["directories"]),
        isr=tuple(fields["isr"]),
        removing=tuple(fields["removingReplicas"]),
        adding=tuple(fields["addingReplicas"]),
        elr=tuple(fields["elr"]),
        leader=fields["leader"],
        leader_epoch=fields["leaderEpoch"],
        partition_epoch=fields["partitionEpoch"],
        last_known_elr=tuple(fields["lastKnownElr"]),
        leader_recovery_state=fields["leaderRecoveryState"],
    )


def partition_fields(partition: PartitionImage) -> Case:
    """The way back; ELR and last known ELR are sets."""
    return {
        "replicas": list(partition.replicas),
        "directories": [uuid_to_string(each) for each in partition.directories],
        "isr": list(partition.isr),
        "elr": sorted(partition.elr),
        "lastKnownElr": sorted(partition.last_known_elr),
        "removingReplicas": list(partition.removing),
        "addingReplicas": list(partition.adding),
        "leader": partition.leader,
        "leaderRecoveryState": partition.leader_recovery_state,
        "leaderEpoch": partition.leader_epoch,
        "partitionEpoch": partition.partition_epoch,
    }


def with_sets(fields: Case) -> Case:
    """Fields of a partition or a record, with the lists that stand for sets in order."""
    sets = ("elr", "lastKnownElr", "eligibleLeaderReplicas")
    return {
        key: sorted(value) if key in sets and value is not None else value
        for key, value in fields.items()
    }


def change_fields(record: PartitionChangeRecord) -> Case:
    """The fields that a change sets, without its topic and partition."""
    shown = with_sets(to_json(record, PartitionChangeRecord.VERSIONS.high))
    return {key: value for key, value in shown.items() if key not in ("partitionId", "topicId")}


def decision_context(state: Case) -> DecisionContext:
    """The cluster of a case: its brokers, the topic `t`, and the settings of that."""
    brokers = {each["id"]: _broker(each) for each in state["brokers"]}
    partitions = {index: partition_image(each) for index, each in enumerate(state["partitions"])}
    topic = TopicImage("t", uuid_from_string(state["topicId"]), partitions)
    names = ("min.insync.replicas", "unclean.leader.election.enable")
    configs = {name: str(state[name]).lower() for name in names}
    elr = 1 if state["eligibleLeaderReplicasEnabled"] else 0
    image = MetadataImage(
        brokers=brokers,
        topics=LayeredMap({topic.name: topic}),
        topics_by_id=LayeredMap({topic.topic_id: topic}),
        configs=LayeredMap({(TOPIC_RESOURCE, topic.name): configs}),
        features={METADATA_VERSION: 30, ELIGIBLE_LEADER_REPLICAS: elr},
    )
    settings = TopicSettings(BrokerConfig.from_properties({"node.id": "1"}), 1)
    return DecisionContext(image, PartitionIndex(image), settings)


def _broker(fields: Case) -> BrokerRegistration:
    return BrokerRegistration(
        id=fields["id"],
        epoch=fields["epoch"],
        incarnation_id=bytes(16),
        endpoints={},
        fenced=fields["fenced"],
        in_controlled_shutdown=fields["inControlledShutdown"],
        log_dirs=tuple(uuid_from_string(each) for each in fields["logDirs"]),
    )


def record_fields(records: Sequence[Message]) -> list[Case]:
    """Records as the files show them; the order of different partitions does not count."""
    shown = []
    for record in records:
        version = record_version(record, 30)
        data = with_sets(to_json(record, version))
        shown.append({"type": type(record).__name__, "version": version, "data": data})
    return _ordered(shown)


def expected_records(case: Case) -> list[Case]:
    """The records of a case, in the order of `record_fields`."""
    listed = [{**each, "data": with_sets(each["data"])} for each in case["records"]]
    return _ordered(listed)


def _ordered(records: list[Case]) -> list[Case]:
    """Runs of partition records in the order of the partitions; all others where they stand."""
    ordered: list[Case] = []
    for is_partition, run in groupby(records, lambda each: "partitionId" in each["data"]):
        listed = list(run)
        ordered += (
            sorted(listed, key=lambda e: e["data"]["partitionId"]) if is_partition else listed
        )
    return ordered

"""Directories of replicas: assignments, failed disks, and who may lead then (KIP-858)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from kbroker.controller.partitions import directories
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.directories import Assignment
from kbroker.controller.partitions.partition_index import PartitionIndex
from kbroker.controller.result import CHANGES_PER_STEP
from kbroker.metadata.configs import TopicSettings
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    BrokerRegistration,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from kbroker.metadata.layered_map import LayeredMap
from kbroker.model import UNASSIGNED_DIRECTORY, Uuid, uuid_from_string
from kbroker.ports import at_once
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import AssignReplicasToDirsRequest
from kbroker.protocol.messages.stored.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import Cluster, topic
from tests.controller.decisions import (
    Case,
    compare,
    decision_context,
    expected_records,
    record_fields,
)

D1, D2, OTHER = (bytes([number]) * 16 for number in (11, 12, 13))
TOPIC_ID = bytes(15) + b"\x07"


def context(image: MetadataImage) -> DecisionContext:
    settings = TopicSettings(BrokerConfig.from_properties({"node.id": "1"}), 1)
    return DecisionContext(image, PartitionIndex(image), settings)


def assign(
    image: MetadataImage, broker: BrokerRegistration, assignments: Sequence[Assignment]
) -> list[Message]:
    steps = directories.assign(context(image), broker, assignments, found_may_lead=True)
    return list(at_once(steps).records)


def directories_failed(
    image: MetadataImage, broker: BrokerRegistration, failed: Sequence[Uuid]
) -> list[Message]:
    return at_once(directories.directories_failed(context(image), broker, failed))


def cluster(*directories: bytes, brokers: int = 1, level: int = 30) -> MetadataImage:
    """A topic with a partition per directory of broker 1; every other broker has one of its own."""
    registered = {
        number: BrokerRegistration(
            number,
            number,
            bytes(16),
            {},
            fenced=False,
            log_dirs=(D1, D2) if number == 1 else (OTHER,),
        )
        for number in range(1, brokers + 1)
    }
    replicas = tuple(registered)
    partitions = {
        index: PartitionImage(
            replicas, (directory, *(OTHER,) * (brokers - 1)), isr=replicas, leader=1
        )
        for index, directory in enumerate(directories)
    }
    topic = TopicImage("t", TOPIC_ID, partitions)
    nothing: LayeredMap[str, TopicImage] = LayeredMap()
    by_id: LayeredMap[bytes, TopicImage] = LayeredMap()
    return MetadataImage(
        offset=5,
        brokers=registered,
        topics=nothing.changed({"t": topic}),
        topics_by_id=by_id.changed({TOPIC_ID: topic}),
        features={METADATA_VERSION: level, ELIGIBLE_LEADER_REPLICAS: 1},
    )


def after(image: MetadataImage, records: list[Message]) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(offset=9, epoch=1)


def test_an_assignment_is_one_record_without_a_new_leader_epoch() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, D1)
    wanted = [Assignment(TOPIC_ID, 0, D2), Assignment(TOPIC_ID, 1, D1)]
    records = assign(image, image.brokers[1], wanted)
    assert records == [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, directories=[D2])]
    partition = after(image, records).topics["t"].partitions[0]
    assert (partition.directories, partition.leader_epoch, partition.partition_epoch) == (
        (D2,), 0, 1
    )  # fmt: skip
    assert assign(after(image, records), image.brokers[1], wanted) == []


def test_other_replicas_keep_their_directories() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, brokers=3)
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, D1)])
    assert after(image, records).topics["t"].partitions[0].directories == (D1, OTHER, OTHER)


@pytest.mark.parametrize(
    "assignment",
    [
        pytest.param(Assignment(bytes(16), 0, D1), id="unknown topic"),
        pytest.param(Assignment(TOPIC_ID, 9, D1), id="unknown partition"),
    ],
)
def test_what_is_unknown_is_passed_over(assignment: Assignment) -> None:
    image = cluster(UNASSIGNED_DIRECTORY)
    assert assign(image, image.brokers[1], [assignment]) == []
    stranger = replace(image.brokers[1], id=8)
    assert assign(image, stranger, [Assignment(TOPIC_ID, 0, D1)]) == []


def test_an_old_metadata_version_has_no_directories() -> None:
    image = cluster(UNASSIGNED_DIRECTORY, level=16)
    assert assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, D1)]) == []


def test_a_failed_directory_costs_the_leadership_of_what_is_in_it() -> None:
    image = cluster(D1, D2, UNASSIGNED_DIRECTORY)
    records = directories_failed(image, image.brokers[1], [D2])
    assert records[-1] == BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, log_dirs=[D1])
    now = after(image, records)
    assert [p.leader for p in now.topics["t"].partitions.values()] == [1, -1, 1]
    assert now.topics["t"].partitions[1].elr == (1,)
    assert now.brokers[1].log_dirs == (D1,)
    assert directories_failed(now, now.brokers[1], [D2]) == []


def test_another_broker_takes_over() -> None:
    image = cluster(D1, D2, brokers=3)
    now = after(image, directories_failed(image, image.brokers[1], [D1]))
    moved, kept = now.topics["t"].partitions.values()
    assert (moved.leader, moved.isr) == (2, (2, 3))
    assert (kept.leader, kept.isr) == (1, (1, 2, 3))


def test_a_replica_reported_in_an_offline_directory_does_not_lead() -> None:
    image = cluster(D1)
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 0, OTHER)])
    partition = after(image, records).topics["t"].partitions[0]
    assert (partition.leader, partition.directories) == (-1, (OTHER,))


def test_a_replica_found_in_a_directory_that_is_online_leads_again() -> None:
    image = cluster(D1, D2)
    image = after(image, directories_failed(image, image.brokers[1], [D2]))
    records = assign(image, image.brokers[1], [Assignment(TOPIC_ID, 1, D1)])
    (record,) = records
    assert isinstance(record, PartitionChangeRecord)
    assert (record.leader, record.directories) == (1, [D1])
    partition = after(image, records).topics["t"].partitions[1]
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())


def test_kafkas_assignments() -> None:
    """Kafka's own decision, in which a replica that was found does not lead at once."""

    def decide(case: Case) -> object:
        fields, context = case["request"], decision_context(case["state"])
        assignment = Assignment(
            uuid_from_string(fields["topicId"]),
            fields["partitionIndex"],
            uuid_from_string(fields["directory"]),
        )
        try:
            broker = context.registered(fields["brokerId"], fields["brokerEpoch"])
        except KafkaError as error:
            return error.code.name
        result = at_once(directories.assign(context, broker, [assignment], found_may_lead=False))
        (error_code,) = result.response
        return error_code.name, record_fields(result.records)

    def expected(case: Case) -> object:
        if "exception" in case:
            return case["exception"]
        return case["response"], expected_records(case)

    compare(
        "controller",
        300,
        decide,
        expected,
        select=lambda case: case["api"] == "AssignReplicasToDirs",
    )


def test_a_request_is_answered_in_its_own_shape() -> None:
    kind = AssignReplicasToDirsRequest
    cluster = Cluster(brokers=())
    cluster.register(1, log_dirs=(D1, D2))
    epoch = cluster.epoch_of(1)
    cluster.beat(1)
    cluster.create(topic("t", 2))
    topic_id = cluster.image.topics["t"].topic_id

    def asked(topic_id: bytes, *partitions: int) -> AssignReplicasToDirsRequest.TopicData:
        listed = [kind.PartitionData(partition_index=index) for index in partitions]
        return kind.TopicData(topic_id=topic_id, partitions=listed)

    request = kind(
        broker_id=1,
        broker_epoch=epoch,
        directories=[
            kind.DirectoryData(id=D1, topics=[asked(topic_id, 0, 7), asked(TOPIC_ID, 0)]),
            kind.DirectoryData(id=D2, topics=[asked(topic_id, 1)]),
        ],
    )
    response = cluster.run(cluster.controller.assign_replicas_to_directories(request))
    shown = [
        (directory.id, each.topic_id, [(p.partition_index, p.error_code) for p in each.partitions])
        for directory in response.directories
        for each in directory.topics
    ]
    assert shown == [
        (D1, topic_id, [(0, 0), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        (D1, TOPIC_ID, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
        (D2, topic_id, [(1, 0)]),
    ]
    placed = [each.directories for each in cluster.image.topics["t"].partitions.values()]
    assert placed == [(D1,), (D2,)]


def test_what_a_request_names_is_looked_at_and_answered_in_steps() -> None:
    """Directories and topics, too: one MB may have 50,000 without a partition."""
    kind = AssignReplicasToDirsRequest
    cluster = Cluster(brokers=())
    cluster.register(1, log_dirs=(D1,))
    count = 3 * directories.ANSWERS_PER_STEP
    partition = kind.PartitionData(partition_index=0)
    topic_of = [kind.TopicData(topic_id=TOPIC_ID, partitions=[partition] * count)]
    for listed in (
        [kind.DirectoryData(id=D1)] * count,
        [kind.DirectoryData(id=D1, topics=[kind.TopicData(topic_id=TOPIC_ID)] * count)],
        [kind.DirectoryData(id=D1, topics=topic_of)],
    ):
        request = kind(broker_id=1, broker_epoch=cluster.epoch_of(1), directories=listed)
        errors = [ErrorCode.UNKNOWN_TOPIC_ID] * count
        assert len(list(directories.assignment_response(request, errors))) >= 2
        assert isinstance(directories.requested_assignments(request), Iterator)
        steps = cluster.controller.assign_replicas_to_directories(request)
        assert len(list(steps)) > count // CHANGES_PER_STEP


@pytest.mark.parametrize(
    ("known", "told", "changes"),
    [
        pytest.param(None, None, False, id="the broker does not know yet"),
        pytest.param(None, [], True, id="none, told for the first time"),
        pytest.param((D1,), [D1], False, id="as before"),
        pytest.param((D1, D2), [D2, D1], False, id="in another order"),
        pytest.param((D1,), [D1, D2], True, id="one more"),
        pytest.param((D1,), [], True, id="none any more"),
        pytest.param((D1,), [D1, D1, OTHER], False, id="twice, and one of another broker"),
    ],
)
def test_cordoned_directories(
    known: tuple[bytes, ...] | None, told: list[bytes] | None, changes: bool
) -> None:
    broker = BrokerRegistration(1, 7, bytes(16), {}, log_dirs=(D1, D2), cordoned_log_dirs=known)
    records = directories.directories_cordoned(broker, told)
    record = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, cordoned_log_dirs=told)
    assert records == ([record] if changes else [])

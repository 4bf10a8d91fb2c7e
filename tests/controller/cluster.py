"""A controller with brokers, without a log: what tests of decisions start from."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.controller import Controller
from kbroker.controller.result import ControllerResult, Decision, DecisionSteps, in_steps
from kbroker.metadata.image import METADATA_VERSION, Endpoint, MetadataImage
from kbroker.metadata.records import decode_record, encode_record
from kbroker.model import Uuid
from kbroker.ports import at_once
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from kbroker.protocol.messages.stored.metadata_records import FeatureLevelRecord
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.settings.broker import BrokerConfig

R = TypeVar("R")


def directory(broker: int) -> Uuid:
    """The log directory of that broker."""
    return bytes([broker - 1, *range(1, 16)])


DIRECTORY = directory(1)
ENDPOINTS = {"PLAINTEXT": Endpoint("PLAINTEXT", "localhost", 9092)}

CreatableTopic = CreateTopicsRequest.CreatableTopic
Assignment = CreateTopicsRequest.CreatableReplicaAssignment
TopicConfig = CreateTopicsRequest.CreatableTopicConfig


class Cluster:
    """Decides and replays at once; `log` holds every record as bytes."""

    def __init__(self, *, brokers: Sequence[int] = (1,), elr: bool = True, **settings: str) -> None:
        properties = {key.replace("_", "."): value for key, value in settings.items()}
        config = BrokerConfig.from_properties({"node.id": "1", **properties})
        self.controller = Controller(config, random=Random(7), node_id=1)
        self.log: list[bytes] = []
        self._incarnations = 0
        records = [decode_record(data) for data in default_bootstrap_records()]
        if not elr:
            records = [r for r in records if "eligible" not in getattr(r, "name", "")]
        self.run(self.controller.bootstrap(records))
        for broker in brokers:
            self.register(broker)
            self.beat(broker)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def run(self, decision: Decision[R]) -> R:
        result = at_once(in_steps(decision))
        if result.records:
            version = self.image.metadata_version
            self.log += [encode_record(record, version) for record in result.records]
            self.controller.replay(result.records, offset=len(self.log) - 1, epoch=1)
            self.controller.next_offset = len(self.log)
        return result.response

    def register(self, broker: int, *, previous: int = -1, log_dirs: tuple[Uuid, ...] = ()) -> int:
        """Register that broker in a new incarnation. log_dirs: one of its own by default."""
        self._incarnations += 1
        incarnation_id = bytes([self._incarnations]) * 16
        request = registration(broker, incarnation_id=incarnation_id, log_dirs=log_dirs)
        request.previous_broker_epoch = previous
        return self.run(
            self.controller.register_broker(request, kraft_version=1, has_valid_session=False)
        )

    def beat(self, broker: int, *, fence: bool = False, stop: bool = False) -> HeartbeatReply:
        """A heartbeat of that broker, which has read all the metadata."""
        return self.run(heartbeat(self.controller, broker, fence=fence, stop=stop))

    def shut_down(self, broker: int) -> None:
        """A controlled shutdown of that broker from its beginning to its end."""
        while not self.beat(broker, stop=True).should_shut_down:
            for other in self.image.usable_brokers():
                if other.id != broker:
                    self.beat(other.id, stop=other.in_controlled_shutdown)

    def level(self, metadata_version: int) -> None:
        """Finalize that metadata.version."""
        record = FeatureLevelRecord(name=METADATA_VERSION, feature_level=metadata_version)
        self.run(ControllerResult([record], None))

    def epoch_of(self, broker: int) -> int:
        return self.image.brokers[broker].epoch

    def propose_isr(self, name: str, index: int, isr: Sequence[int]) -> AlterPartitionResponse:
        """The leader of that partition proposes this ISR (AlterPartition)."""
        topic = self.image.topics[name]
        partition = topic.partitions[index]
        proposal = AlterPartitionRequest.PartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=id_) for id_ in isr],
        )
        asked = AlterPartitionRequest.TopicData(topic_id=topic.topic_id, partitions=[proposal])
        request = AlterPartitionRequest(
            broker_id=partition.leader, broker_epoch=self.epoch_of(partition.leader), topics=[asked]
        )
        return self.run(self.controller.alter_partition(request))

    def rejoin(self, name: str, broker: int) -> None:
        """The broker is in sync again in all partitions of that topic that have a replica on it."""
        for index, partition in self.image.topics[name].partitions.items():
            if broker in partition.replicas and broker not in partition.isr:
                self.propose_isr(name, index, [*partition.isr, broker])

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsResponse:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        return self.run(self.controller.create_topics(request))


def registration(
    broker: int, *, incarnation_id: Uuid = bytes(16), log_dirs: tuple[Uuid, ...] = ()
) -> BrokerRegistrationRequest:
    """The registration of a broker after a crash. log_dirs: one of its own by default."""
    data = BrokerRegistrationData(
        incarnation_id=incarnation_id,
        endpoints=ENDPOINTS,
        log_dirs=log_dirs or (directory(broker),),
    )
    return data.request(broker_id=broker, cluster_id="")


def heartbeat(
    controller: Controller, broker_id: int, *, fence: bool = False, stop: bool = False
) -> DecisionSteps[HeartbeatReply]:
    """The decision on a heartbeat of a broker that has read all the metadata."""
    return controller.broker_heartbeat(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=controller.image.brokers[broker_id].epoch,
            current_metadata_offset=controller.image.offset,
            want_fence=fence,
            want_shut_down=stop,
        )
    )


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    assignments: Sequence[Sequence[int]] = (),
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    """A topic as CreateTopics names it; manual assignments set partitions and replicas to -1."""
    if assignments:
        partitions = replicas = -1
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            Assignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(assignments)
        ],
        configs=[TopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )

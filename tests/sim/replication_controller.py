"""The controller of a simulated cluster: kbroker's `ControllerService` over a metadata log that
commits everything after a moment. It neither fails nor restarts; messages to and from it are
subject to the network, and in some seeds it is slow to tell what it has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kbroker.controller.controller import Controller
from kbroker.controller.service import ControllerService
from kbroker.metadata.image import MetadataImage, PartitionImage
from kbroker.metadata.records import decode_record
from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.cluster import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from tests.sim.process import SimProcess
from tests.sim.rpc import Rpc
from tests.sim.simulation import Simulation
from tests.sim.two_brokers import MetadataBatch, MetadataLog, MetadataReader

CONTROLLER_ID = 100
COMMIT_MS = 3
POLL_MS = 200


@dataclass(frozen=True)
class FetchMetadata:
    """A broker asks for the committed batches from a position on; the answer waits for some."""

    position: int


class CommittingLog(MetadataLog):
    """Commits each batch a moment after it was appended."""

    def __init__(self, controller: SimController) -> None:
        super().__init__()
        self._controller = controller

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> None:
        """See `controller.service.MetadataLog`."""
        super().append(records, atomic=atomic)
        self._controller.process.call_later(COMMIT_MS, self._controller.commit)


class SimController:
    """See the module."""

    def __init__(self, simulation: Simulation, settings: dict[str, str]) -> None:
        self.process = SimProcess(
            simulation.timers, simulation.random("controller process"), lambda: None
        )
        self._network = simulation.network
        self.log = CommittingLog(self)
        self._reader = MetadataReader(CONTROLLER_ID, self.log)
        config = BrokerConfig.from_properties({"node.id": str(CONTROLLER_ID), **settings})
        self.service = ControllerService(
            Controller(config, random=Random(simulation.seed), node_id=CONTROLLER_ID),
            self.log,
            committed_image=lambda: self.image,
            timers=self.process,
            config=config,
            slices=TimeSlices(self.process, clock=lambda: 0.0),
        )
        self._rpc = Rpc(CONTROLLER_ID, 1, simulation.network, self.process, self._serve)
        self._polls: list[tuple[int, Deferred[object]]] = []
        self._incarnations: dict[int, bytes] = {}
        """The last that has asked to be registered, of each broker."""
        self._random = random = simulation.random("controller")
        self.answers_lost = random.choice((0.0, 0.7))
        """The share of AlterPartition requests that are carried out and not answered."""
        self.metadata_late_ms = random.choice((0, 0, 2_000, 4_000))
        """How much longer a broker may wait for metadata."""
        simulation.network.attach(CONTROLLER_ID, self.process, receive=self._rpc.received)

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self._reader.loader.image

    def partition(self, key: TopicPartition) -> PartitionImage:
        """A partition as committed."""
        found = self.image.partition(*key)
        assert found is not None
        return found

    def start(self) -> None:
        """Lead, and write what a new cluster has."""
        self.service.activate(open_transaction=False)
        bootstrap = [decode_record(data) for data in default_bootstrap_records()]
        self.service.submit(lambda controller, _: controller.bootstrap(bootstrap))

    def create_topic(
        self, name: str, assignments: Sequence[Sequence[int]], configs: dict[str, str]
    ) -> Deferred[object]:
        """CreateTopics with these replicas, the preferred leader first."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(
                    partition_index=index, broker_ids=list(replicas)
                )
                for index, replicas in enumerate(assignments)
            ],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic])
        return self.service.submit(lambda controller, _: controller.create_topics(request))

    def commit(self) -> None:
        """Commit the next batch, and tell the brokers that wait for one."""
        self.log.commit()
        batch = self._reader.receive()
        assert batch is not None
        self.service.committed(*batch)
        polls, self._polls = self._polls, []
        for position, answer in polls:
            self._answer(position, answer)

    def _serve(self, body: object) -> Deferred[object]:
        match body:
            case FetchMetadata():
                return self._fetch(body.position)
            case BrokerRegistrationRequest():
                return self._register(body)
            case BrokerHeartbeatRequest():
                return self.service.heartbeat(body).then(lambda reply: reply)
            case AlterPartitionRequest():
                altered = self.service.submit(
                    lambda controller, _: controller.alter_partition(body)
                )
                if self._random.random() < self.answers_lost:
                    return Deferred()
                return altered.then(lambda response: response)
            case _:
                raise TypeError(body)

    def _register(self, request: BrokerRegistrationRequest) -> Deferred[object]:
        """What a dead process has sent is not delivered after the request of the next one, whose
        incarnation is higher: replaced by it, the next one would stay fenced until it is restarted,
        in Kafka too.
        """
        incarnation = bytes(request.incarnation_id)
        if incarnation < self._incarnations.get(request.broker_id, b""):
            raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        self._incarnations[request.broker_id] = incarnation
        return self.service.register_broker(request).then(lambda epoch: epoch)

    def _fetch(self, position: int) -> Deferred[object]:
        answer: Deferred[object] = Deferred()
        if position < self.log.committed:
            self._answer(position, answer)
            return answer
        poll = position, answer
        self._polls.append(poll)

        def expire() -> None:
            if poll in self._polls:
                self._polls.remove(poll)
                answer.resolve(())

        self.process.call_later(POLL_MS, expire)
        return answer

    def _answer(self, position: int, answer: Deferred[object]) -> None:
        batches: tuple[MetadataBatch, ...] = tuple(self.log.batches[position : self.log.committed])
        late_ms = self._random.uniform(0, self.metadata_late_ms)
        self.process.call_later(late_ms, lambda: answer.resolve(batches))

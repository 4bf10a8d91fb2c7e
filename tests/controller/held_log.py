"""A controller's service whose log is held: the test decides what is committed, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.controller import Controller
from kbroker.controller.service import ControllerService, Slices
from kbroker.metadata.image import Endpoint
from kbroker.metadata.loader import MetadataLoader
from kbroker.metadata.records import decode_record
from kbroker.ports import Deferred
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import BrokerHeartbeatRequest
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from tests.controller.cluster import heartbeat
from tests.sim.timers import SimTimers

REGISTRATION = BrokerRegistrationData(
    incarnation_id=b"i" * 16,
    endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "localhost", 9092)},
    log_dirs=(b"d" * 16,),
)
EPOCH = 1


class HeldLog:
    """A metadata log that commits its batches when the test says so."""

    epoch = EPOCH
    is_leader = True

    def __init__(self) -> None:
        self.kraft_version = 1
        self.next_offset = 0
        self.batches: list[tuple[int, Sequence[bytes]]] = []

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> None:
        self.batches.append((self.next_offset, records))
        self.next_offset += len(records)

    def check_kraft_upgrade(self, level: int) -> None:
        """Every voter supports it."""

    def upgrade_kraft_version(self, level: int) -> None:
        """Two control records."""
        if level != self.kraft_version:
            self.kraft_version = level
            self.batches.append((self.next_offset + 1, []))
            self.next_offset += 2


class Node:
    """The service with the metadata loader of its node, one broker registered and unfenced."""

    def __init__(self, *, is_active: bool = True, slices: Slices | None = None) -> None:
        config = BrokerConfig.from_properties({"node.id": "1"})
        self.log = HeldLog()
        self.timers = SimTimers()
        self.loader = MetadataLoader("cluster", node_id=1)
        self.controller = Controller(config, random=Random(7), node_id=1)
        self.service = ControllerService(
            self.controller,
            self.log,
            slices=slices or TimeSlices(None),
            committed_image=lambda: self.loader.image,
            timers=self.timers,
            config=config,
        )
        self.loader.caught_up()
        if not is_active:
            return
        self.service.activate(open_transaction=False)
        bootstrap = [decode_record(data) for data in default_bootstrap_records()]
        self.service.submit(lambda controller, _: controller.bootstrap(bootstrap))
        self.service.submit(
            lambda controller, _: controller.register_broker(
                REGISTRATION.request(broker_id=1, cluster_id=controller.image.cluster_id),
                kraft_version=1,
                has_valid_session=False,
            )
        )
        self.commit()
        self.service.submit(lambda controller, _: heartbeat(controller, 1))
        self.commit()

    def commit(self, batches: int | None = None) -> None:
        """Commit the next batches, all by default: first the loader's, then the service's turn."""
        count = len(self.log.batches) if batches is None else batches
        committed, self.log.batches = self.log.batches[:count], self.log.batches[count:]
        for base_offset, records in committed:
            deque(self.loader.committed(base_offset, EPOCH, records), maxlen=0)
            self.service.committed(base_offset, EPOCH, records)

    def create(self, name: str, partitions: int = 1) -> Deferred[CreateTopicsResponse]:
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions)
        topic.replication_factor = 1
        request = CreateTopicsRequest(topics=[topic])
        return self.service.submit(lambda controller, _: controller.create_topics(request))


def beat(node: Node, broker_id: int) -> Deferred[HeartbeatReply]:
    """A heartbeat of a broker that has read all the metadata."""
    image = node.controller.image
    return node.service.heartbeat(
        BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=image.brokers[broker_id].epoch,
            current_metadata_offset=image.offset,
            want_fence=False,
            want_shut_down=False,
        )
    )


def register(node: Node, broker_id: int, incarnation: int) -> Deferred[int]:
    registration = BrokerRegistrationData(
        incarnation_id=bytes([incarnation]) * 16,
        endpoints=REGISTRATION.endpoints,
        log_dirs=(bytes([broker_id]) * 16,),
    )
    return node.service.register_broker(
        registration.request(broker_id=broker_id, cluster_id="cluster")
    )

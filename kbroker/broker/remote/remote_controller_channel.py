"""`BrokerChannel` of a broker whose controller is elsewhere: each method is a request of
Kafka's protocol to the active controller (`node_to_controller`).

The answer says that the change is committed. As in Kafka, it does not wait for this broker's own
image: a client may ask this broker for a new topic before the broker has read of it. Topics that a
client needs are created in its name. Requests of clients do not come here: `server/forwarding`
passes them on as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kbroker.broker.altered_configs import incremental_request, outcomes_of, whole_request
from kbroker.broker.controller_channel import AlterationLimits, BrokerRegistrationData
from kbroker.broker.node_to_controller import HEARTBEAT, NodeToController
from kbroker.broker.principal_requests import send_with_principal
from kbroker.broker.topic_creation import InternalTopics
from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.configs.configs import AlterationOutcome, Alterations
from kbroker.controller.partitions.directories import Assignment
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.metadata.internal_topics import InternalTopic, internal_topic
from kbroker.metadata.topic_names import name_error
from kbroker.model import ClientIdentity, Uuid
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError, error_of
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

DIRECTORIES: Final = "directory assignments"
PRODUCER_IDS: Final = "producer ids"
PARTITIONS: Final = "alter partition"
"""Purposes of connections, beside those of `node_to_controller`."""

FORWARDED_ALTERATIONS: Final = 512
FORWARDED_BYTES: Final = 128 * 1024
"""What is passed on to the controller at a time."""

FORWARDED_LIMITS: Final = AlterationLimits(
    FORWARDED_ALTERATIONS, FORWARDED_BYTES, one_at_a_time=True
)


class RemoteControllerChannel:
    """See `BrokerChannel`. metadata_offset: the last offset of the metadata log that this
    broker's image contains. Loop thread only.
    """

    __slots__ = (
        "_cluster_id",
        "_config",
        "_creating",
        "_internal_topics",
        "_metadata_offset",
        "_offline_directories",
        "_refusals",
        "_requests",
        "_session_retry_ms",
        "_wishes",
    )

    def __init__(
        self,
        config: BrokerConfig,
        requests: NodeToController,
        *,
        cluster_id: str,
        metadata_offset: Callable[[], int],
    ) -> None:
        self._config = config
        self._requests = requests
        self._cluster_id = cluster_id
        self._metadata_offset = metadata_offset
        self._session_retry_ms = config.get_int("broker.session.timeout.ms") // 2
        self._offline_directories: dict[Uuid, None] = {}
        self._wishes = (True, False)
        self._creating: dict[str, Deferred[ErrorCode]] = {}
        self._internal_topics = InternalTopics()
        self._refusals: dict[str, ErrorCode] = {}
        """Of internal topics, as last logged: clients ask again several times per second."""

    # The broker itself.

    def register_broker(self, registration: BrokerRegistrationData) -> Deferred[int]:
        """See BrokerChannel."""
        request: BrokerRegistrationRequest = registration.request(
            broker_id=self._config.node_id, cluster_id=self._cluster_id
        )
        return self._requests.send(
            request,
            BrokerRegistrationResponse,
            purpose=HEARTBEAT,
            retry_ms=self._session_retry_ms,
        ).then(_broker_epoch)

    def heartbeat(
        self,
        broker_epoch: int,
        *,
        want_fence: bool,
        want_shut_down: bool,
        cordoned: Sequence[Uuid] | None = None,
    ) -> Deferred[HeartbeatReply]:
        """See BrokerChannel. Each heartbeat names all directories that failed."""
        self._wishes = want_fence, want_shut_down
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=list(self._offline_directories),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )
        return self._requests.send(
            request, BrokerHeartbeatResponse, purpose=HEARTBEAT, retry_ms=self._session_retry_ms
        ).then(_heartbeat_reply)

    def directories_failed(self, broker_epoch: int, failed: Sequence[Uuid]) -> Deferred[None]:
        """See BrokerChannel. Sent at once, in a heartbeat that changes nothing else."""
        self._offline_directories.update(dict.fromkeys(failed))
        want_fence, want_shut_down = self._wishes
        return self.heartbeat(
            broker_epoch, want_fence=want_fence, want_shut_down=want_shut_down
        ).then(lambda _: None)

    def assign_directories(
        self, broker_epoch: int, assignments: Sequence[Assignment]
    ) -> Deferred[list[ErrorCode]]:
        """See BrokerChannel. UNKNOWN_SERVER_ERROR for an assignment that is not in the response."""
        request = AssignReplicasToDirsRequest(
            broker_id=self._config.node_id,
            broker_epoch=broker_epoch,
            directories=_by_directory(assignments),
        )
        sent = self._requests.send(request, AssignReplicasToDirsResponse, purpose=DIRECTORIES)
        return sent.then(partial(_assignment_errors, assignments)).recover(
            partial(_without_directories, assignments)
        )

    def allocate_producer_ids(self, broker_epoch: int) -> Deferred[ProducerIdBlock]:
        """See BrokerChannel."""
        request = AllocateProducerIdsRequest(
            broker_id=self._config.node_id, broker_epoch=broker_epoch
        )
        return self._requests.send(request, AllocateProducerIdsResponse, purpose=PRODUCER_IDS).then(
            _producer_ids
        )

    def alter_partition(self, request: AlterPartitionRequest) -> Deferred[AlterPartitionResponse]:
        """See BrokerChannel."""
        return self._requests.send(request, AlterPartitionResponse, purpose=PARTITIONS)

    # Settings that the broker has checked.

    @property
    def alteration_limits(self) -> AlterationLimits:
        """See BrokerChannel."""
        return FORWARDED_LIMITS

    def alter_configs(
        self, request: Alterations, client: ClientIdentity
    ) -> Deferred[list[AlterationOutcome]]:
        """See BrokerChannel. Fails with UNKNOWN_SERVER_ERROR if an outcome is missing."""
        named = request.resources
        if request.incremental:
            sent = send_with_principal(
                self._requests,
                client,
                incremental_request(request),
                IncrementalAlterConfigsResponse,
            )
            return sent.then(lambda response: outcomes_of(response.responses, named))
        whole = send_with_principal(
            self._requests, client, whole_request(request), AlterConfigsResponse
        )
        return whole.then(lambda response: outcomes_of(response.responses, named))

    # Topics that the broker creates.

    def ensure_topic(self, name: str, client: ClientIdentity | None = None) -> Deferred[ErrorCode]:
        """See BrokerChannel. One request per topic is under way (AutoTopicCreationManager);
        it is that of the first client. What this broker's settings leave open is up to the
        controller's.
        """
        if name_error(name) is not None:
            return Deferred.of(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return self._ensure(
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=self._setting_or_default("num.partitions"),
                replication_factor=self._setting_or_default("default.replication.factor"),
            ),
            client,
        )

    def _setting_or_default(self, name: str) -> int:
        """The setting of this broker, -1 if it has none."""
        return self._config.get_int(name) if self._config.is_explicit(name) else -1

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """See BrokerChannel."""
        wanted = internal_topic(name, self._config)
        if wanted is None:
            return Deferred.of(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return self._ensure(wanted.creation(), None).then(partial(self._report, wanted))

    def request_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """See BrokerChannel. The response waits for nothing: the controller may be away for long,
        and this broker reads of the topic later still.
        """
        self._internal_topics.create(name, self, node_id=self._config.node_id)
        return Deferred.of(ErrorCode.NONE)

    def _report(self, topic: InternalTopic, error: ErrorCode) -> ErrorCode:
        """Log that an internal topic cannot be created, once for each error."""
        if error is ErrorCode.NONE:
            self._refusals.pop(topic.name, None)
        elif self._refusals.get(topic.name) is not error:
            self._refusals[topic.name] = error
            logger.warning(
                "node %d: %s cannot be created with replication factor %d: %s",
                self._config.node_id,
                topic.name,
                topic.replication_factor,
                error.name,
            )
        return error

    def _ensure(
        self, topic: CreateTopicsRequest.CreatableTopic, client: ClientIdentity | None
    ) -> Deferred[ErrorCode]:
        name = topic.name
        under_way = self._creating.get(name)
        if under_way is not None:
            return under_way
        request = CreateTopicsRequest(topics=[topic])
        created = self.create_topics(request, client=client).then(_created)
        if not created.done:
            self._creating[name] = created
            created.on_done(partial(self._end_creation, name), partial(self._end_creation, name))
        return created

    def _end_creation(self, name: str, outcome: ErrorCode | KafkaError) -> None:
        del outcome  # the callers have it
        del self._creating[name]

    def create_topics(
        self, request: CreateTopicsRequest, *, client: ClientIdentity | None = None
    ) -> Deferred[CreateTopicsResponse]:
        """See BrokerChannel."""
        if client is None:
            return self._requests.send(request, CreateTopicsResponse)
        return send_with_principal(self._requests, client, request, CreateTopicsResponse)


def _check(error_code: int) -> None:
    if error_code:
        raise KafkaError(error_of(error_code), "the active controller refused it")


def _broker_epoch(response: BrokerRegistrationResponse) -> int:
    _check(response.error_code)
    return response.broker_epoch


def _heartbeat_reply(response: BrokerHeartbeatResponse) -> HeartbeatReply:
    _check(response.error_code)
    return HeartbeatReply(
        is_caught_up=response.is_caught_up,
        is_fenced=response.is_fenced,
        should_shut_down=response.should_shut_down,
    )


def _assignment_errors(
    assignments: Sequence[Assignment], response: AssignReplicasToDirsResponse
) -> list[ErrorCode]:
    """In the order of assignments."""
    _check(response.error_code)
    found = {
        (topic.topic_id, partition.partition_index): partition.error_code
        for directory in response.directories
        for topic in directory.topics
        for partition in topic.partitions
    }
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return [error_of(found.get((each.topic_id, each.partition), missing)) for each in assignments]


def _without_directories(assignments: Sequence[Assignment], error: KafkaError) -> list[ErrorCode]:
    """The metadata.version, or the controller, is too old for assignments."""
    if error.code is not ErrorCode.UNSUPPORTED_VERSION:
        raise error
    return [ErrorCode.NONE] * len(assignments)


def _producer_ids(response: AllocateProducerIdsResponse) -> ProducerIdBlock:
    _check(response.error_code)
    return ProducerIdBlock(response.producer_id_start, response.producer_id_len)


def _by_directory(
    assignments: Sequence[Assignment],
) -> list[AssignReplicasToDirsRequest.DirectoryData]:
    found: dict[Uuid, dict[Uuid, list[int]]] = {}
    for each in assignments:
        topics = found.setdefault(each.directory_id, {})
        topics.setdefault(each.topic_id, []).append(each.partition)
    return [
        AssignReplicasToDirsRequest.DirectoryData(
            id=directory_id,
            topics=[
                AssignReplicasToDirsRequest.TopicData(
                    topic_id=topic_id,
                    partitions=[
                        AssignReplicasToDirsRequest.PartitionData(partition_index=index)
                        for index in indexes
                    ],
                )
                for topic_id, indexes in topics.items()
            ],
        )
        for directory_id, topics in found.items()
    ]


def _created(response: CreateTopicsResponse) -> ErrorCode:
    code = ErrorCode(response.topics[0].error_code)
    return ErrorCode.NONE if code is ErrorCode.TOPIC_ALREADY_EXISTS else code

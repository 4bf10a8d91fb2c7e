"""AlterPartition: the leader of a partition proposes its ISR (KIP-497, KIP-704, KIP-841,
KIP-903).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.partitions.partition_change import RECOVERED, RECOVERING
from kbroker.controller.result import CHANGES_PER_STEP, ControllerResult, DecisionSteps
from kbroker.metadata.delta import LEADER_UNCHANGED, changed_partition
from kbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse

TOPICS_PER_STEP: Final = 256
MAX_ISR: Final = 1000
"""Members that a proposal may name; no partition has so many replicas."""

Proposal = AlterPartitionRequest.PartitionData
PartitionResponse = AlterPartitionResponse.PartitionData


def alter_partition(
    context: DecisionContext, request: AlterPartitionRequest
) -> DecisionSteps[AlterPartitionResponse]:
    """An outcome per partition. Raises KafkaError(STALE_BROKER_EPOCH)."""
    context.registered(request.broker_id, request.broker_epoch)
    records: list[Message] = []
    response = AlterPartitionResponse()
    count = 0
    for position, asked in enumerate(request.topics):
        if position and position % TOPICS_PER_STEP == 0:
            yield
        answered = AlterPartitionResponse.TopicData(topic_id=asked.topic_id)
        response.topics.append(answered)
        topic = context.image.topics_by_id.get(asked.topic_id)
        for proposal in asked.partitions:
            if count and count % CHANGES_PER_STEP == 0:
                yield
            count += 1
            error = ErrorCode.UNKNOWN_TOPIC_ID
            if topic is not None:
                error = _problem(context.image, topic, request.broker_id, proposal)
            if topic is None or error is not ErrorCode.NONE:
                answered.partitions.append(_refusal(proposal, error))
            else:
                answered.partitions.append(
                    _alter(context, topic, request.broker_id, proposal, records)
                )
    return ControllerResult(records, response, atomic=False)


def _alter(
    context: DecisionContext,
    topic: TopicImage,
    leader: int,
    proposal: Proposal,
    records: list[Message],
) -> PartitionResponse:
    partition = topic.partitions[proposal.partition_index]
    builder = context.change(topic, proposal.partition_index, configured_election=True)
    builder.target_isr = tuple(member.broker_id for member in _isr(proposal))
    builder.target_leader_recovery_state = proposal.leader_recovery_state
    record = builder.build()
    if record is not None:
        records.append(record)
        partition = changed_partition(partition, record)
        if record.leader not in (leader, LEADER_UNCHANGED):
            # The new ISR ended a reassignment that removes the leader. The record counts, and the
            # former leader has to read the metadata.
            return _refusal(proposal, ErrorCode.NEW_LEADER_ELECTED)
    return PartitionResponse(
        partition_index=proposal.partition_index,
        error_code=ErrorCode.NONE,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


def _refusal(proposal: Proposal, error: ErrorCode) -> PartitionResponse:
    return PartitionResponse(partition_index=proposal.partition_index, error_code=error)


def _isr(proposal: Proposal) -> Sequence[AlterPartitionRequest.BrokerState]:
    """The proposed members; up to v2 a request names no broker epochs."""
    return proposal.new_isr_with_epochs or [
        AlterPartitionRequest.BrokerState(broker_id=broker_id) for broker_id in proposal.new_isr
    ]


def _problem(image: MetadataImage, topic: TopicImage, leader: int, proposal: Proposal) -> ErrorCode:
    """The first check that the proposal fails, in Kafka's order."""
    partition = topic.partitions.get(proposal.partition_index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(proposal.new_isr_with_epochs) + len(proposal.new_isr) > MAX_ISR:
        return ErrorCode.INVALID_REQUEST
    epochs = (proposal.leader_epoch, proposal.partition_epoch)
    if epochs[0] > partition.leader_epoch or epochs[1] > partition.partition_epoch:
        # The leader knows more than this controller, which is probably no longer the active one.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = _isr(proposal)
    if not _is_valid_isr(partition, proposal, [member.broker_id for member in members]):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(image, member) for member in members):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_valid_isr(partition: PartitionImage, proposal: Proposal, isr: Sequence[int]) -> bool:
    """Whether it has replicas only, each once, the leader among them, and a recovery state that
    goes with it.
    """
    if len(set(isr)) < len(isr) or not set(isr) <= set(partition.replicas):
        return False
    if partition.leader not in isr:
        return False
    if proposal.leader_recovery_state == RECOVERING:
        return len(isr) == 1 and partition.leader_recovery_state != RECOVERED
    return proposal.leader_recovery_state == RECOVERED


def _is_eligible(image: MetadataImage, member: AlterPartitionRequest.BrokerState) -> bool:
    """Whether the broker may be in an ISR: it is active, and the incarnation that the leader saw
    (epoch -1: not known).
    """
    broker = image.brokers.get(member.broker_id)
    if broker is None or not broker.is_active:
        return False
    return member.broker_epoch in (-1, broker.epoch)

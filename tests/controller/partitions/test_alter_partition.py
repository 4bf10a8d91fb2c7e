"""AlterPartition: Kafka's own answers, and what a request with several partitions gets."""

from __future__ import annotations

from kbroker.controller.partitions.alter_partition import MAX_ISR, TOPICS_PER_STEP, alter_partition
from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.model import uuid_from_string
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse
from tests.controller.decisions import (
    Case,
    cases,
    compare,
    decision_context,
    expected_records,
    record_fields,
)

Proposal = AlterPartitionRequest.PartitionData
BrokerState = AlterPartitionRequest.BrokerState


def proposal(fields: Case) -> Proposal:
    return Proposal(
        partition_index=fields["partitionIndex"],
        leader_epoch=fields["leaderEpoch"],
        partition_epoch=fields["partitionEpoch"],
        new_isr_with_epochs=[
            BrokerState(broker_id=broker, broker_epoch=epoch)
            for broker, epoch in fields["newIsrWithEpochs"]
        ],
        leader_recovery_state=fields["leaderRecoveryState"],
    )


def request(fields: Case, *proposals: Proposal) -> AlterPartitionRequest:
    topic = AlterPartitionRequest.TopicData(
        topic_id=uuid_from_string(fields["topicId"]),
        partitions=list(proposals) or [proposal(fields)],
    )
    return AlterPartitionRequest(
        broker_id=fields["brokerId"], broker_epoch=fields["brokerEpoch"], topics=[topic]
    )


def answers(response: AlterPartitionResponse) -> list[Case]:
    (topic,) = response.topics
    shown: list[Case] = []
    for each in topic.partitions:
        error = ErrorCode(each.error_code)
        answer: Case = {"error": error.name}
        if error is ErrorCode.NONE:
            answer |= {
                "leaderId": each.leader_id,
                "leaderEpoch": each.leader_epoch,
                "isr": each.isr,
                "leaderRecoveryState": each.leader_recovery_state,
                "partitionEpoch": each.partition_epoch,
            }
        shown.append(answer)
    return shown


def test_kafkas_answers() -> None:
    def decide(case: Case) -> object:
        try:
            result = at_once(
                alter_partition(decision_context(case["state"]), request(case["request"]))
            )
        except KafkaError as error:
            return error.code.name
        (answer,) = answers(result.response)
        assert not result.atomic
        return answer, record_fields(result.records)

    def expected(case: Case) -> object:
        if "exception" in case:
            return case["exception"]
        return case["response"], expected_records(case)

    compare("alter-partition", 2000, decide, expected)


def accepted() -> tuple[DecisionContext, Case]:
    """A cluster, and a request in it that changes something."""
    for _, case in cases("alter-partition"):
        if case.get("records") and case["response"]["error"] == "NONE":
            return decision_context(case["state"]), case["request"]
    raise AssertionError("no case changes anything")


def test_each_partition_has_its_own_outcome() -> None:
    context, fields = accepted()
    unknown = proposal({**fields, "partitionIndex": 17})
    result = at_once(alter_partition(context, request(fields, unknown, proposal(fields), unknown)))
    errors = [each["error"] for each in answers(result.response)]
    assert errors == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert len(result.records) == 1


def test_up_to_v2_a_request_names_no_broker_epochs() -> None:
    context, fields = accepted()
    old = proposal(fields)
    old.new_isr = [member.broker_id for member in old.new_isr_with_epochs]
    old.new_isr_with_epochs = []
    newer = at_once(alter_partition(context, request(fields)))
    older = at_once(alter_partition(context, request(fields, old)))
    assert answers(older.response) == answers(newer.response)


def test_a_proposal_of_very_many_members_is_refused() -> None:
    context, fields = accepted()
    for name, member in (("new_isr", 1), ("new_isr_with_epochs", BrokerState(broker_id=1))):
        large = proposal(fields)
        setattr(large, name, [member] * (MAX_ISR + 1))
        result = at_once(alter_partition(context, request(fields, large)))
        assert answers(result.response) == [{"error": "INVALID_REQUEST"}]
        assert not result.records


def test_topics_without_partitions_are_answered_in_steps() -> None:
    context, fields = accepted()
    asked = request(fields)
    empty = AlterPartitionRequest.TopicData(topic_id=bytes(16))
    asked.topics = [empty] * (3 * TOPICS_PER_STEP)
    assert len(list(alter_partition(context, asked))) == 2


def test_an_unknown_recovery_state_is_refused() -> None:
    context, fields = accepted()
    strange = proposal({**fields, "leaderRecoveryState": 5})
    result = at_once(alter_partition(context, request(fields, strange)))
    assert answers(result.response) == [{"error": "INVALID_REQUEST"}]
    assert not result.records

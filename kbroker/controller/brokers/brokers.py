"""Brokers come and go: fencing, controlled shutdown, unregistration (KIP-631, KIP-966).
Registration is in `broker_registration`.

The order of the records is Kafka's. They need not be in one batch, so a crash may come between
them: where a broker leaves, the change of its registration is last and is decided again; where it
returns or begins to shut down, that change is first.

A broker may have 10,000 partitions, each a tenth of a millisecond's work, so the records are found
in steps.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.partitions.decision_context import DecisionContext
from kbroker.controller.result import RecordSteps
from kbroker.metadata.image import BrokerRegistration
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)

SET: Final = 1
CLEAR: Final = -1


def clean_up_incarnation(context: DecisionContext, broker_id: int, *, clean: bool) -> RecordSteps:
    """The changes of partitions that end a broker's previous incarnation.

    clean: it ended with all its records on disk. Otherwise the broker is not eligible to lead any
    more; without ELR there is no difference.
    """
    in_isr = context.partitions.in_isr(broker_id)
    if clean or not context.image.elr_enabled:
        return (yield from context.leader_and_isr_updates(in_isr, leaving=broker_id))
    records = yield from context.leader_and_isr_updates(in_isr, unclean_shutdown=broker_id)
    in_elr = context.partitions.in_elr(broker_id)
    records += yield from context.leader_and_isr_updates(in_elr, unclean_shutdown=broker_id)
    return records


def unfence(context: DecisionContext, broker: BrokerRegistration) -> RecordSteps:
    """The broker may lead again: it becomes the leader of its partitions without a leader."""
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=CLEAR
    )
    leaderless = context.partitions.leaderless()
    led = yield from context.leader_and_isr_updates(leaderless, joining=broker.id)
    return [change, *led]


def fence(context: DecisionContext, broker: BrokerRegistration) -> RecordSteps:
    """The broker leaves its ISRs and leads no more."""
    in_isr = context.partitions.in_isr(broker.id)
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, fenced=SET
    )
    left = yield from context.leader_and_isr_updates(in_isr, leaving=broker.id)
    return [*left, change]


def begin_controlled_shutdown(context: DecisionContext, broker: BrokerRegistration) -> RecordSteps:
    """The broker wants to stop: other members of the ISR become leaders of its partitions."""
    records: list[Message] = []
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=SET
            )
        )
    in_isr = context.partitions.in_isr(broker.id)
    records += yield from context.leader_and_isr_updates(in_isr, leaving=broker.id)
    return records


def unregister(context: DecisionContext, broker_id: int) -> RecordSteps:
    """UnregisterBroker: the broker is no part of the cluster any more; the replica lists keep it.

    Raises KafkaError(BROKER_ID_NOT_REGISTERED).
    """
    broker = context.image.brokers.get(broker_id)
    if broker is None:
        message = f"Broker ID {broker_id} is not currently registered"
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    partitions = context.partitions
    in_isr, in_elr = partitions.in_isr(broker_id), partitions.in_elr(broker_id)
    records = yield from context.leader_and_isr_updates(in_isr, leaving=broker_id)
    records += yield from context.leader_and_isr_updates(in_elr, leaving=broker_id)
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return records

"""Blocks of producer ids (KIP-730): the metadata log says which ids are given away, a broker hands
them out.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kbroker.metadata.image import MetadataImage
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.stored.metadata_records import ProducerIdsRecord

BLOCK_SIZE: Final = 1000

MAX_ID: Final = (1 << 63) - 1


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """Ids from first_id on, count of them."""

    first_id: int
    count: int


def allocate(
    image: MetadataImage, *, broker_id: int, broker_epoch: int
) -> tuple[ProducerIdsRecord, ProducerIdBlock]:
    """The next block, and the record that gives it away. Raises KafkaError(STALE_BROKER_EPOCH) for
    a former incarnation of a broker.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} is not registered at epoch {broker_epoch}.",
        )
    first_id = image.next_producer_id
    if first_id > MAX_ID - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The producer ids are used up.")
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first_id + BLOCK_SIZE
    )
    return record, ProducerIdBlock(first_id, BLOCK_SIZE)

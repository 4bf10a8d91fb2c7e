"""Blocks of producer ids: each is given away once, to a broker of the present epoch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kbroker.controller.producer_ids import BLOCK_SIZE, MAX_ID, allocate
from kbroker.protocol.errors import ErrorCode, KafkaError
from tests.controller.cluster import Cluster


def test_blocks_of_producer_ids() -> None:
    cluster = Cluster()
    epoch = cluster.epoch_of(1)
    blocks = [cluster.run(cluster.controller.allocate_producer_ids(1, epoch)) for _ in range(3)]
    assert [(block.first_id, block.count) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert cluster.image.next_producer_id == 3000


def test_the_record_names_the_next_block() -> None:
    cluster = Cluster()
    epoch = cluster.epoch_of(1)
    image = replace(cluster.image, next_producer_id=5000)
    record, block = allocate(image, broker_id=1, broker_epoch=epoch)
    assert (record.broker_id, record.broker_epoch, record.next_producer_id) == (1, epoch, 6000)
    assert (block.first_id, block.count) == (5000, BLOCK_SIZE)


@pytest.mark.parametrize(("broker_id", "ahead"), [(1, 1), (1, -1), (2, 0)])
def test_a_broker_that_is_not_registered_so_gets_none(broker_id: int, ahead: int) -> None:
    cluster = Cluster()
    with pytest.raises(KafkaError) as caught:
        allocate(cluster.image, broker_id=broker_id, broker_epoch=cluster.epoch_of(1) + ahead)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_ids_do_not_overflow() -> None:
    cluster = Cluster()
    epoch = cluster.epoch_of(1)
    last = replace(cluster.image, next_producer_id=MAX_ID - BLOCK_SIZE)
    record, _ = allocate(last, broker_id=1, broker_epoch=epoch)
    assert record.next_producer_id == MAX_ID
    with pytest.raises(KafkaError) as caught:
        allocate(replace(last, next_producer_id=MAX_ID), broker_id=1, broker_epoch=epoch)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR

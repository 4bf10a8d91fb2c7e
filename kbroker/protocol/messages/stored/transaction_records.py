"""Records of `__transaction_state` (KIP-98, KIP-890)."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
)


class TransactionLogKey(CoordinatorKey, api_key=0, versions="0"):
    transactional_id: str = string("0")


class TransactionLogValue(CoordinatorValue, api_key=0, versions="0-1", flexible="1+"):
    class PartitionsSchema(Struct):
        topic: str = string("0+")
        partition_ids: list[int] = array("int32", "0+")

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", tag=0, tagged="1+", default=-1)
    next_producer_id: int = int64("1+", tag=1, tagged="1+", default=-1)
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", tag=3, tagged="1+", default=-1)
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = array(
        "PartitionsSchema", "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2, tagged="1+", default=0)

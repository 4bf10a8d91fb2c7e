"""Records of `__share_group_state` (KIP-932)."""

from __future__ import annotations

from kbroker.model import Uuid
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
    uuid,
)


class ShareSnapshotKey(CoordinatorKey, api_key=0, versions="0"):
    group_id: str = string("0")
    topic_id: Uuid = uuid("0")
    partition: int = int32("0")


class ShareSnapshotValue(CoordinatorValue, api_key=0, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    snapshot_epoch: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", tag=0, tagged="0+", default=-1)
    create_timestamp: int = int64("0+")
    write_timestamp: int = int64("0+")
    state_batches: list[ShareSnapshotValue.StateBatch] = array("StateBatch", "0+")


class ShareUpdateKey(CoordinatorKey, api_key=1, versions="0"):
    group_id: str = string("0")
    topic_id: Uuid = uuid("0")
    partition: int = int32("0")


class ShareUpdateValue(CoordinatorValue, api_key=1, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    snapshot_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", tag=0, tagged="0+", default=-1)
    state_batches: list[ShareUpdateValue.StateBatch] = array("StateBatch", "0+")

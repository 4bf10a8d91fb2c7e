"""The data that classic consumers embed in JoinGroup and SyncGroup."""

from __future__ import annotations

from kbroker.protocol.codecs.schema import Binary, Data, Struct, array, binary, int32, string


class ConsumerProtocolSubscription(Data, versions="0-3"):
    class TopicPartition(Struct):
        topic: str = string("1+")
        partitions: list[int] = array("int32", "1+")

    topics: list[str] = array("string", "0+")
    user_data: Binary | None = binary("0+", nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = array(
        "TopicPartition", "1+", ignorable=True
    )
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Data, versions="0-3"):
    class TopicPartition(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("int32", "0+")

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = array(
        "TopicPartition", "0+"
    )
    user_data: Binary | None = binary("0+", nullable="0+", default=None)

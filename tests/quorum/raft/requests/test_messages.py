"""The quorum's messages have exactly one partition."""

from __future__ import annotations

from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.quorum import FetchSnapshotRequest, VoteRequest
from kbroker.quorum.raft.requests.messages import (
    METADATA_TOPIC_ID,
    fetch_partition,
    metadata_partition,
    snapshot_partition,
)


def test_a_request_names_exactly_the_metadata_partition() -> None:
    def partition(name: str, index: int) -> VoteRequest.TopicData:
        data = VoteRequest.PartitionData(partition_index=index)
        return VoteRequest.TopicData(topic_name=name, partitions=[data])

    good = partition("__cluster_metadata", 0)
    assert metadata_partition([good]) is good.partitions[0]
    for wrong in (
        [],
        [good, good],
        [partition("other", 0)],
        [partition("__cluster_metadata", 1)],
        [VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=[])],
    ):
        assert metadata_partition(wrong) is None
    assert snapshot_partition(FetchSnapshotRequest()) is None


def test_a_fetch_names_the_topic_by_its_id_or_by_its_name() -> None:
    def request(topic: str, topic_id: bytes, index: int = 0) -> FetchRequest:
        data = FetchRequest.FetchPartition(partition=index)
        named = FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[data])
        return FetchRequest(topics=[named])

    assert fetch_partition(request("", METADATA_TOPIC_ID)) is not None
    assert fetch_partition(request("__cluster_metadata", bytes(16))) is not None
    assert fetch_partition(request("other", bytes(16))) is None
    assert fetch_partition(request("", METADATA_TOPIC_ID, 1)) is None
    assert fetch_partition(FetchRequest()) is None

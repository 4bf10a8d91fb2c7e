"""One Fetch, and the batches of its response."""

from __future__ import annotations

import pytest

from kbroker.client.cluster import READ_UNCOMMITTED
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.testing import EmbeddedBroker
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.fetch import batches_of, fetch
from tests.clients.adapters import ConfluentAdapter, Sent
from tests.spark.lag.group_cluster import GroupCluster


@pytest.mark.filterwarnings("ignore")
def test_the_batch_at_an_offset_is_returned_whatever_its_size(
    kafka_broker: EmbeddedBroker, kafka_topic: str
) -> None:
    adapter = ConfluentAdapter(kafka_broker.bootstrap_servers)
    for _ in range(3):
        sent = [Sent(None, b"v" * 1000, (), 1_700_000_000_000, 0)] * 4
        adapter.produce(kafka_topic, sent, codec="none", idempotent=True)
    client = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    place = TopicPartition(kafka_topic, 0)
    try:
        one = list(batches_of(fetch(client, place, 5, READ_UNCOMMITTED, 1)))
        everything = list(batches_of(fetch(client, place, 0, READ_UNCOMMITTED)))
    finally:
        client.close()
    (header, batch), *more = one
    assert header.base_offset <= 5 <= header.last_offset and not more
    assert len(batch) == header.size_bytes
    assert sum(header.record_count for header, _ in everything) == 12


def test_an_error_of_the_partition() -> None:
    cluster = GroupCluster(t=1)
    cluster.fail(ApiKey.FETCH, ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(KafkaError, match="Fetch of t-0 at 3"):
        fetch(cluster.client(), TopicPartition("t", 0), 3, READ_UNCOMMITTED)

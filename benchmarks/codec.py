"""Speed of the compiled codecs: microseconds per partition of a Fetch request and response.

    python -m benchmarks.codec

100 partitions in one topic; the best of several rounds, so that a busy machine matters less.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

from kbroker.protocol.codecs.codec import decode, encode, encode_parts
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse

PARTITIONS = 100
ROUNDS = 15
LOOPS = 300


class Payload:
    """Stands for a range of a log file."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


def fetch_request() -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(
            partition=i, current_leader_epoch=3, fetch_offset=1000 * i, partition_max_bytes=1 << 20
        )
        for i in range(PARTITIONS)
    ]
    topic = FetchRequest.FetchTopic(topic="orders", topic_id=bytes(16), partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def fetch_response(records: bytes | Payload) -> FetchResponse:
    partitions = [
        FetchResponse.PartitionData(
            partition_index=i,
            high_watermark=1000 * i,
            last_stable_offset=1000 * i,
            log_start_offset=0,
            aborted_transactions=[],
            records=records,
        )
        for i in range(PARTITIONS)
    ]
    topic = FetchResponse.FetchableTopicResponse(topic="orders", partitions=partitions)
    return FetchResponse(responses=[topic])


def produce_request() -> ProduceRequest:
    partitions = [
        ProduceRequest.PartitionProduceData(index=i, records=bytes(200)) for i in range(PARTITIONS)
    ]
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=partitions)
    return ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[topic])


def produce_response() -> ProduceResponse:
    partitions = [
        ProduceResponse.PartitionProduceResponse(index=i, base_offset=1000 * i, log_start_offset=0)
        for i in range(PARTITIONS)
    ]
    topic = ProduceResponse.TopicProduceResponse(name="orders", partition_responses=partitions)
    return ProduceResponse(responses=[topic])


def measure(label: str, function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)
    seconds = min(timeit.repeat(lambda: function(*arguments), number=LOOPS, repeat=ROUNDS)) / LOOPS
    print(f"{label:44} {seconds / PARTITIONS * 1e6:6.3f} us per partition")


def main() -> None:
    request, response = fetch_request(), fetch_response(bytes(200))
    by_reference = fetch_response(Payload(1 << 20))
    produce, answer = produce_request(), produce_response()
    for version in (4, 11, 12, 18):
        raw = encode(request, version)
        measure(f"decode FetchRequest v{version}", decode, FetchRequest, raw, version)
    for version in (11, 12):
        raw = encode(response, version)
        measure(f"encode FetchResponse v{version}", encode, response, version)
        measure(f"  the same, records by reference v{version}", encode_parts, by_reference, version)
        measure(f"decode FetchResponse v{version}", decode, FetchResponse, raw, version)
    for version in (7, 12):
        raw = encode(produce, version)
        measure(f"decode ProduceRequest v{version}", decode, ProduceRequest, raw, version)
        measure(f"encode ProduceResponse v{version}", encode, answer, version)
    measure("construct FetchResponse", fetch_response, b"")


if __name__ == "__main__":
    main()

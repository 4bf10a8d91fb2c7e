"""Topic settings that decide what an append does, seen by librdkafka: time stamps, sizes, codecs,
flushing, preallocation, rolling, and bombs.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.testing.process import BrokerProcess
from tests.e2e.wire import call

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

NOW_MS = int(time.time() * 1000)
DAY_MS = 86_400_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
_numbers = count()


class Topics:
    """A broker in its own process, and topics of one partition in it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap_servers

    def create(self, **config: str) -> str:
        from confluent_kafka.admin import AdminClient, NewTopic

        name = f"appending-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(10)
        return name

    def produce(self, topic: str, records: list[dict[str, Any]], **config: Any) -> list[Any]:
        """What was answered to each: an error name, or None and the message."""
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 50, "message.max.bytes": 9_000_000}
            | {key.replace("_", "."): value for key, value in config.items()}
        )
        answers: list[Any] = []
        for record in records:
            producer.produce(topic, on_delivery=lambda *answer: answers.append(answer), **record)
        assert producer.flush(20) == 0
        return [error.name() if error is not None else message for error, message in answers]

    def consume(self, topic: str, expected: int) -> list[Any]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "check.crcs": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + 20
        while len(found) < expected and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        consumer.close()
        return found

    def files(self, topic: str, kind: str = "log") -> list[Path]:
        return sorted((self.broker.data / f"{topic}-0").glob(f"*.{kind}"))

    def codecs(self, topic: str) -> set[str]:
        data = b"".join(path.read_bytes() for path in self.files(topic))
        return {header.codec.name.lower() for _, header in iter_batches(data)}


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    folder = tmp_path_factory.mktemp("appending") / "data"
    with BrokerProcess(folder) as broker:
        yield Topics(broker)


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_every_codec_becomes_the_topics(topics: Topics, target: str) -> None:
    levels = {"gzip": "9", "lz4": "1", "zstd": "-5"}
    config = {"compression_type": target}
    if target in levels:
        config[f"compression_{target}_level"] = levels[target]
    topic = topics.create(**config)
    values = [b"%d " % number * 400 for number in range(300)]
    for codec in CODECS:
        answers = topics.produce(
            topic, [{"value": value} for value in values], compression_type=codec
        )
        assert [answer.offset() for answer in answers] == sorted(a.offset() for a in answers)
    found = topics.consume(topic, len(values) * len(CODECS))
    assert [message.value() for message in found] == values * len(CODECS)
    expected = set(CODECS) if target == "producer" else {target.replace("uncompressed", "none")}
    assert topics.codecs(topic) == expected


def test_the_level_is_the_topics(topics: Topics) -> None:
    text = " ".join(f"{number * 7919 % 10007:x}" for number in range(20_000)).encode()
    sizes = {}
    for level in ("1", "9"):
        topic = topics.create(compression_type="gzip", compression_gzip_level=level)
        topics.produce(topic, [{"value": text}])
        sizes[level] = topics.files(topic)[0].stat().st_size
    assert sizes["9"] < sizes["1"] * 0.98


def test_log_append_time_replaces_the_producers(topics: Topics) -> None:
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

    topic = topics.create(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    answers = topics.produce(
        topic, [{"value": b"x", "timestamp": 1_000 + n} for n in range(10)], compression_type="lz4"
    )
    after = int(time.time() * 1000)
    found = topics.consume(topic, 10)
    for message in [*answers, *found]:
        kind, timestamp = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before <= timestamp <= after


@pytest.mark.parametrize(
    ("config", "timestamp", "error"),
    [
        ({"message_timestamp_before_max_ms": "60000"}, NOW_MS - DAY_MS, "INVALID_TIMESTAMP"),
        ({"message_timestamp_before_max_ms": str(2 * DAY_MS)}, NOW_MS - DAY_MS, None),
        ({"message_timestamp_after_max_ms": "60000"}, NOW_MS + DAY_MS, "INVALID_TIMESTAMP"),
        ({"message_timestamp_after_max_ms": str(2 * DAY_MS)}, NOW_MS + DAY_MS, None),
        ({}, NOW_MS + DAY_MS, "INVALID_TIMESTAMP"),
        ({}, 1, None),
        ({"max_message_bytes": "1000", "cleanup_policy": "compact"}, NOW_MS, "MSG_SIZE_TOO_LARGE"),
        ({"max_message_bytes": "1300"}, NOW_MS, None),
        ({"max_message_bytes": "8000000"}, NOW_MS, None),
    ],
    # The timestamps differ between the processes of a parallel run, test ids must not.
    ids=[
        "too-old", "old", "too-new", "new", "too-new-by-default", "1970", "too-large",
        "just-fits", "large",
    ],
)  # fmt: skip
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bounds(
    topics: Topics, config: dict[str, str], timestamp: int, error: str | None, codec: str
) -> None:
    topic = topics.create(retention_ms="-1", **config)
    size = 5_000_000 if config.get("max_message_bytes") == "8000000" else 1_100
    value = NOW_MS.to_bytes(8, "big").ljust(size, b"x")
    if codec == "zstd" and error == "MSG_SIZE_TOO_LARGE":
        value = random.Random(1).randbytes(size)
    (answer,) = topics.produce(
        topic,
        [{"value": value, "key": b"k", "timestamp": timestamp}],
        compression_type=codec,
        retries=0,
    )
    if error is not None:
        assert answer == error
    else:
        assert answer.offset() == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("records", [3, 3_000])
def test_records_without_key_on_a_compacted_topic(topics: Topics, codec: str, records: int) -> None:
    topic = topics.create(cleanup_policy="compact")
    sent = [{"value": b"some value", "key": b"%d" % number} for number in range(records)]
    del sent[-1]["key"]
    answers = topics.produce(topic, sent, compression_type=codec, linger_ms=500)
    assert answers[-1] == "INVALID_RECORD"
    answers = topics.produce(topic, sent[:-1], compression_type=codec)
    assert not any(isinstance(answer, str) for answer in answers)


def test_flush_messages_and_flush_ms(topics: Topics) -> None:
    for config in ({"flush_messages": "1"}, {"flush_messages": "7", "flush_ms": "100"}):
        topic = topics.create(**config)
        for acks in ("1", "all", "0"):
            answers = topics.produce(topic, [{"value": b"x"}] * 100, acks=acks, linger_ms=0)
            assert not any(isinstance(answer, str) for answer in answers)
        assert len(topics.consume(topic, 300)) == 300


def test_segments_are_preallocated_and_cut(topics: Topics) -> None:
    size = 1 << 20
    topic = topics.create(preallocate="true", segment_bytes=str(size))
    topics.produce(topic, [{"value": bytes(1000)}] * 500)
    assert [path.stat().st_size for path in topics.files(topic)] == [size]
    topics.produce(topic, [{"value": bytes(1000)}] * 1000)
    *closed, active = topics.files(topic)
    assert closed
    assert active.stat().st_size == size
    for path in closed:
        end = list(iter_batches(path.read_bytes()))[-1]
        assert path.stat().st_size == end[0] + end[1].size_bytes
    assert len(topics.consume(topic, 1500)) == 1500


def test_segments_roll_by_age_and_by_a_full_index(topics: Topics) -> None:
    aged = topics.create(segment_ms="10000", retention_ms="-1")
    for step in range(4):
        topics.produce(aged, [{"value": b"x", "timestamp": NOW_MS - DAY_MS + step * 11_000}])
    assert len(topics.files(aged)) == 4
    full = topics.create(segment_index_bytes="40", index_interval_bytes="0")
    for _ in range(20):
        topics.produce(full, [{"value": b"x"}])
    assert len(topics.files(full)) >= 4
    assert len(topics.consume(full, 20)) == 20
    for path in topics.files(full, "index")[:-1]:
        assert path.stat().st_size <= 40


def zstd_bomb(size: int) -> bytearray:
    """A batch that unpacks to size zeros: run-length blocks of 128 KiB, four bytes each."""
    run = 1 << 17
    head = b"\x28\xb5\x2f\xfd\x00\x58"  # magic, nothing known, a window of 2 MiB
    block = (run << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (run << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    batch = build_batch([(NOW_MS, b"k", b"v", [])])[:61]
    batch += head + block * (size // run - 1) + last
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[22] = Compression.ZSTD
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


def memory_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("config", [{"compression_type": "gzip"}, {"cleanup_policy": "compact"}])
def test_a_bomb_is_refused_and_memory_comes_back(topics: Topics, config: dict[str, str]) -> None:
    topic = topics.create(**config)
    bomb = zstd_bomb(10 << 30)
    assert len(bomb) < 1 << 20
    pid = topics.broker.pid
    before = memory_kib(pid, "VmRSS")
    data = ProduceRequest.PartitionProduceData(index=0, records=bytearray(bomb))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    with socket.create_connection((topics.broker.host, topics.broker.port), timeout=60) as wire:
        for _ in range(5):
            answer = call(wire, request, 9).responses[0].partition_responses[0]  # type: ignore[attr-defined]  # a ProduceResponse
            assert answer.error_code in (
                ErrorCode.MESSAGE_TOO_LARGE,
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
            )
    assert memory_kib(pid, "VmHWM") - before < 80 << 10
    assert memory_kib(pid, "VmRSS") - before < 100 << 10

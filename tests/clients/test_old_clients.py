"""Clients of 0.8.2 to 0.10 and one of today read each other's records.

The old client is kafka-python 2.0.2, told what broker it speaks to, in a process of its own
(`old_client.py`). Its lz4 for brokers before 0.10 needs a library it does not bring; that format is
held against Kafka's own bytes in tests/protocol/batches/test_legacy_records.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from scripts import old_clients
from tests.e2e.wire import call

pytestmark = pytest.mark.clients

BASE_MS = 1_700_000_000_000
VERSIONS = [(0, 8, 2), (0, 9), (0, 10), (0, 10, 1)]
CODECS = [None, "gzip", "snappy", "lz4"]
NewName = Callable[[str], str]


class OldClient:
    """Verbs of old_client.Client; a record is [key, value, timestamp], with the offset first when
    it was read.
    """

    def __init__(self, folder: Path, bootstrap: str, version: tuple[int, ...]) -> None:
        self.version = version
        script = Path(__file__).with_name("old_client.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), bootstrap, json.dumps(version)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )

    def __call__(self, verb: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([verb, arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the old client ended at {verb}"
        answer = json.loads(line)
        assert "error" not in answer, f"{verb}: {answer['error']}"
        return answer["result"]

    def close(self) -> None:
        with self._process:
            self._process.terminate()

    @property
    def codecs(self) -> list[str | None]:
        return CODECS if self.version >= (0, 10) else CODECS[:3]


@pytest.fixture(scope="module")
def old_folder() -> Path:
    try:
        return old_clients.folder()
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"kafka-python 2.0.2 can't be installed: {getattr(error, 'stderr', error)}")


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda v: ".".join(map(str, v)))
def old(request: pytest.FixtureRequest, old_folder: Path, bootstrap: str) -> Iterator[OldClient]:
    client = OldClient(old_folder, bootstrap, request.param)
    yield client
    client.close()


def records(count: int, stem: str = "value") -> list[list[Any]]:
    return [
        [None if i == 2 else f"key {i}", None if i == 3 else f"{stem} {i}", BASE_MS + i]
        for i in range(count)
    ]


def produce_today(
    bootstrap: str, topic: str, sent: list[list[Any]], codec: str | None, **headers: bytes
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec or "none",
            "linger.ms": 50,
            "compression.level": -1,
        }
    )
    for key, value, timestamp in sent:
        producer.produce(
            topic, value, key, partition=0, timestamp=timestamp, headers=list(headers.items())
        )
    assert producer.flush(10) == 0


def read_today(bootstrap: str, topic: str, count: int) -> list[list[Any]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[list[Any]] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=10)
        assert messages, f"{len(found)} of {count} records"
        for message in messages:
            assert message.error() is None
            key, value = message.key(), message.value()
            found.append(
                [
                    message.offset(),
                    None if key is None else key.decode(),
                    None if value is None else value.decode(),
                    message.timestamp()[1],
                ]
            )
    consumer.close()
    return found


def test_both_directions_in_every_codec(old: OldClient, bootstrap: str, new_name: NewName) -> None:
    has_times = old.version >= (0, 10)
    topic = new_name("old")
    sent: list[list[Any]] = []
    for codec in old.codecs:
        theirs, ours = records(6, f"old {codec}"), records(6, f"new {codec}")
        offsets = old("produce", topic=topic, records=theirs, codec=codec, acks="all")
        assert offsets == list(range(len(sent), len(sent) + 6))
        produce_today(bootstrap, topic, ours, codec, trace=b"lost on the way down")
        sent += theirs + ours
    for offset in (0, 3, 7, 20, len(sent) - 1):
        found = old("read", topic=topic, offset=offset, count=len(sent) - offset)
        wanted = [
            [at, key, value, time if has_times else None]
            for at, (key, value, time) in enumerate(sent)
        ]
        assert found == wanted[offset:]
    for at, (offset, key, value, time) in enumerate(read_today(bootstrap, topic, len(sent))):
        assert [offset, key, value] == [at, *sent[at][:2]]
        is_theirs = at // 6 % 2 == 0
        assert time == (sent[at][2] if has_times or not is_theirs else -1)


def test_ends_and_times(old: OldClient, new_name: NewName) -> None:
    topic = new_name("ends")
    old("produce", topic=topic, records=records(5), codec="gzip", acks=1)
    assert old("ends", topic=topic) == [0, 5]
    if old.version >= (0, 10, 1):
        assert old("at_time", topic=topic, timestamp_ms=BASE_MS + 3) == 3
        assert old("at_time", topic=topic, timestamp_ms=BASE_MS + 5) is None


def test_groups_and_offsets(old: OldClient, new_name: NewName) -> None:
    topic, group = new_name("grouped"), new_name("group")
    old("produce", topic=topic, records=records(4), codec=None, acks=1)
    if old.version >= (0, 9):
        assert [record[0] for record in old("group", topic=topic, group=group, count=4)] == [
            *range(4)
        ]
        old("produce", topic=topic, records=records(2), codec="snappy", acks=1)
        assert [r[0] for r in old("group", topic=topic, group=group, count=2)] == [4, 5]
    assert old("commit", topic=topic, group=new_name("alone"), offset=3) == 3


def test_without_acknowledgement(old: OldClient, new_name: NewName) -> None:
    topic = new_name("acks0")
    old("produce", topic=topic, records=records(1), codec=None, acks=1)
    old("produce", topic=topic, records=records(3), codec="gzip", acks=0)
    assert [record[0] for record in old("read", topic=topic, offset=0, count=4)] == [0, 1, 2, 3]


def fetch_code(bootstrap: str, topic: str, offset: int, version: int) -> int:
    """The error of a Fetch of that version, on a connection of its own."""
    partition = FetchRequest.FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    )
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        response = call(connection, request, version)
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions[0].error_code


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_zstd_cannot_be_told_to_an_old_client(
    bootstrap: str, new_name: NewName, version: int
) -> None:
    """As a Kafka of 2.1 to 3.9: no codec of message sets has that name."""
    topic = new_name("zstd")
    produce_today(bootstrap, topic, records(2, "z" * 2000), "gzip")
    produce_today(bootstrap, topic, records(2, "z" * 2000), "zstd")
    assert fetch_code(bootstrap, topic, 0, version) == ErrorCode.NONE
    assert fetch_code(bootstrap, topic, 2, version) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert fetch_code(bootstrap, topic, 2, 10) == ErrorCode.NONE


def test_zstd_is_refused_and_what_lies_before_it_is_read(
    old: OldClient, bootstrap: str, new_name: NewName
) -> None:
    """UNSUPPORTED_COMPRESSION_TYPE: this client asks again for ever, as with a Kafka of 2.1-3.9."""
    topic = new_name("zstd")
    old("produce", topic=topic, records=records(3), codec=None, acks=1)
    produce_today(bootstrap, topic, records(2, "z" * 2000), "zstd")
    assert len(old("read", topic=topic, offset=0, count=3)) == 3
    assert old("read", topic=topic, offset=3, count=1, wait_s=0.3) == []


def test_an_old_client_writes_to_a_topic_of_zstd(
    old: OldClient, bootstrap: str, new_name: NewName
) -> None:
    """What it sends is recompressed for those of today; it can't read it itself."""
    topic = new_name("to-zstd")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new_topic = NewTopic(topic, 1, 1, config={"compression.type": "zstd"})
    admin.create_topics([new_topic])[topic].result(10)
    sent = records(5)
    assert old("produce", topic=topic, records=sent, codec="gzip", acks="all") == [*range(5)]
    found = read_today(bootstrap, topic, 5)
    assert [record[1:3] for record in found] == [record[:2] for record in sent]
    assert fetch_code(bootstrap, topic, 0, 9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert fetch_code(bootstrap, topic, 0, 10) == ErrorCode.NONE
    assert old("read", topic=topic, offset=0, count=1, wait_s=0.3) == []

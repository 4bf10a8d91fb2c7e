"""A kafka-python of 2020 that speaks as to a broker of api_version, one JSON command a line.

Run with the folder of scripts/old_clients.py on PYTHONPATH: a process of its own, since the
kafka-python of today has the same name. Commands come from `OldClient` in test_old_clients.py.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any


def load_six() -> None:
    """Its copy of six has an import hook that Python 3.12 no longer asks: give it what it needs."""
    for folder in sys.path:
        path = Path(folder) / "kafka" / "vendor" / "six.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location("kafka.vendor.six", path)
            assert spec is not None
            assert spec.loader is not None
            six = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = six
            spec.loader.exec_module(six)
            hook = type(six._importer)  # type: ignore[attr-defined]  # six has no types

            def find_spec(self: Any, name: str, path: Any, target: Any = None) -> Any:
                known = name in self.known_modules
                return importlib.machinery.ModuleSpec(name, self) if known else None

            hook.find_spec = find_spec
            hook.create_module = lambda self, spec: self.load_module(spec.name)
            hook.exec_module = lambda self, module: None
            return


warnings.simplefilter("ignore")
load_six()
from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: E402
from kafka.structs import OffsetAndMetadata  # noqa: E402


class Client:
    def __init__(self, bootstrap: str, api_version: list[int]) -> None:
        self.common = {"bootstrap_servers": bootstrap, "api_version": tuple(api_version)}

    def produce(
        self, topic: str, records: list[list[Any]], codec: str | None, acks: Any
    ) -> list[int]:
        producer = KafkaProducer(
            acks=acks, compression_type=codec, linger_ms=20, retries=3, **self.common
        )
        futures = [
            producer.send(topic, key=raw(key), value=raw(value), partition=0, timestamp_ms=stamp)
            for key, value, stamp in records
        ]
        producer.flush(10)
        offsets = [future.get(timeout=10).offset for future in futures]
        producer.close()
        return offsets

    def read(self, topic: str, offset: int, count: int, wait_s: float = 10) -> list[list[Any]]:
        consumer = KafkaConsumer(**self.common)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        found = poll(consumer, count, wait_s)
        consumer.close()
        return found

    def ends(self, topic: str) -> list[int]:
        consumer = KafkaConsumer(**self.common)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        first = consumer.position(partition)
        consumer.seek_to_end(partition)
        last = consumer.position(partition)
        consumer.close()
        return [first, last]

    def at_time(self, topic: str, timestamp_ms: int) -> int | None:
        consumer = KafkaConsumer(**self.common)
        partition = TopicPartition(topic, 0)
        found = consumer.offsets_for_times({partition: timestamp_ms})[partition]
        consumer.close()
        return None if found is None else int(found.offset)

    def group(self, topic: str, group: str, count: int) -> list[list[Any]]:
        """Join, read, commit, leave."""
        consumer = KafkaConsumer(
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            **self.common,
        )
        found = poll(consumer, count)
        consumer.commit()
        consumer.close()
        return found

    def commit(self, topic: str, group: str, offset: int) -> int | None:
        """Commit outside a group's generations; the committed offset as another consumer has it."""
        partition = TopicPartition(topic, 0)
        for _ in range(2):
            consumer = KafkaConsumer(group_id=group, enable_auto_commit=False, **self.common)
            consumer.assign([partition])
            committed = consumer.committed(partition)
            if committed is None:
                consumer.commit({partition: OffsetAndMetadata(offset, "note")})
            consumer.close()
        return None if committed is None else int(committed)


def raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def poll(consumer: Any, count: int, wait_s: float = 10) -> list[list[Any]]:
    found: list[list[Any]] = []
    deadline = time.monotonic() + wait_s
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found += [[r.offset, text(r.key), text(r.value), r.timestamp] for r in records]
    return found


def main() -> None:
    client = Client(sys.argv[1], json.loads(sys.argv[2]))
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        try:
            answer = {"result": getattr(client, verb)(**arguments)}
        except Exception as error:  # noqa: BLE001  # told to the test
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

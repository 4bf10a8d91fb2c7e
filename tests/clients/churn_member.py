"""One member of a group in a process of its own, which says on standard output what it is given,
what is taken from it and what it reads, one JSON object a line, as Kafka's VerifiableConsumer does.

    python churn_member.py librdkafka|aiokafka|kafka-python BOOTSTRAP GROUP TOPIC [NAME=VALUE ...]

It leaves the group when its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from contextlib import suppress
from typing import Any

stopping = threading.Event()


def say(name: str, **fields: Any) -> None:
    print(json.dumps({"name": name, "timestamp": int(time.time() * 1000), **fields}), flush=True)


def partitions(places: Any) -> list[dict[str, Any]]:
    return [{"topic": place.topic, "partition": place.partition} for place in places]


def librdkafka(bootstrap: str, group: str, topic: str, settings: dict[str, str]) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "log_level": "0",
            **settings,
        }
    )

    def taken(_: Any, places: Any) -> None:
        say("partitions_revoked", partitions=partitions(places))

    consumer.subscribe(
        [topic],
        on_assign=lambda _, places: say("partitions_assigned", partitions=partitions(places)),
        on_revoke=taken,
        on_lost=taken,
    )
    while not stopping.is_set():
        messages = [m for m in consumer.consume(100, 0.2) if m.error() is None]
        if messages:
            say("records", values=[m.value().decode() for m in messages])
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                say("commit_failed", error=str(error))
    say("stopping")
    consumer.close()


async def with_aiokafka(bootstrap: str, group: str, topic: str, settings: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: Any) -> None:
            say("partitions_assigned", partitions=partitions(assigned))

        async def on_partitions_revoked(self, revoked: Any) -> None:
            say("partitions_revoked", partitions=partitions(revoked))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        client_id=settings["client.id"],
        session_timeout_ms=int(settings["session.timeout.ms"]),
        heartbeat_interval_ms=int(settings["heartbeat.interval.ms"]),
        max_poll_interval_ms=int(settings["max.poll.interval.ms"]),
        rebalance_timeout_ms=int(settings["max.poll.interval.ms"]),
        partition_assignment_strategy=(assignors[settings["assignor"]],),
    )
    while not stopping.is_set():
        try:
            await consumer.start()
            break
        except KafkaError:  # the broker is just not there
            await asyncio.sleep(0.5)
    consumer.subscribe([topic], listener=Listener())
    while not stopping.is_set():
        try:
            batches = await consumer.getmany(timeout_ms=200)
            values = [m.value.decode() for batch in batches.values() for m in batch]
            if values:
                say("records", values=values)
                await consumer.commit()
        except KafkaError as error:
            say("commit_failed", error=str(error))
    say("stopping")
    await consumer.stop()


def aiokafka(bootstrap: str, group: str, topic: str, settings: dict[str, str]) -> None:
    asyncio.run(with_aiokafka(bootstrap, group, topic, settings))


def kafka_python(bootstrap: str, group: str, topic: str, settings: dict[str, str]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("partitions_assigned", partitions=partitions(assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("partitions_revoked", partitions=partitions(revoked))

    def connect() -> KafkaConsumer:
        while True:
            try:
                return KafkaConsumer(
                    bootstrap_servers=bootstrap,
                    group_id=group,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    client_id=settings["client.id"],
                    session_timeout_ms=int(settings["session.timeout.ms"]),
                    heartbeat_interval_ms=int(settings["heartbeat.interval.ms"]),
                    max_poll_interval_ms=int(settings["max.poll.interval.ms"]),
                    reconnect_backoff_max_ms=int(settings["reconnect.backoff.max.ms"]),
                    partition_assignment_strategy=(assignors[settings["assignor"]],),
                )
            except KafkaError:  # the broker is just not there
                if stopping.wait(0.5):
                    raise

    consumer = connect()
    consumer.subscribe([topic], listener=Listener())
    with suppress(KafkaError):
        consumer.topics()  # before the first poll, see `KafkaPythonAdapter.join`
    while not stopping.is_set():
        try:
            batches = consumer.poll(timeout_ms=200)
            values = [m.value.decode() for batch in batches.values() for m in batch]
            if values:
                say("records", values=values)
                consumer.commit()
        except KafkaError as error:
            say("commit_failed", error=str(error))
    say("stopping")
    consumer.close()


def main() -> int:
    kind, bootstrap, group, topic, *pairs = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in pairs)

    def watch() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=watch, daemon=True).start()
    say("startup")
    clients = {"librdkafka": librdkafka, "aiokafka": aiokafka, "kafka-python": kafka_python}
    clients[kind](bootstrap, group, topic, settings)
    say("shutdown_complete")
    return 0


if __name__ == "__main__":
    sys.exit(main())

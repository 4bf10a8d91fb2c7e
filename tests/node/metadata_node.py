"""A node without connections and replicas on a real metadata log: what tests of the controller, the
metadata and the broker's registration start from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from kbroker.broker.controller_channel import BrokerRegistrationData, LocalControllerChannel
from kbroker.broker.lifecycle import BrokerLifecycle, LifecycleCore
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.records import decode_record
from kbroker.model import random_uuid
from kbroker.node.broker.controller_connection import build_node_to_controller
from kbroker.node.controller_role import ControllerRole
from kbroker.node.loop.futures import as_future
from kbroker.node.loop.offload import ExecutorOffload
from kbroker.node.metadata_log import MetadataLog
from kbroker.ports import Deferred, TimerHandle
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.quorum.formatting.format import ensure_formatted
from kbroker.settings.broker import BrokerConfig

LOG = "__cluster_metadata-0/00000000000000000000.log"
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092)
CreatableTopic = CreateTopicsRequest.CreatableTopic


class StillTimers:
    """Time that only a test moves; callbacks run in a later turn of the loop if they are due."""

    def __init__(self) -> None:
        self.time_ms = 1_795_250_000_000  # within the retention of Kafka's own snapshots

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        delay_seconds = 0 if delay_ms <= 0 else 3600
        return asyncio.get_running_loop().call_later(delay_seconds, callback)


TIMERS = StillTimers()


class MetadataNode:
    """The metadata log, the controller on it, and the registration of one broker. The broker
    carries out every image at once.
    """

    def __init__(
        self, directory: Path, *, previous_broker_epoch: int = -1, **settings: str
    ) -> None:
        properties = {key.replace("_", "."): value for key, value in settings.items()}
        config = BrokerConfig.from_properties(
            {"log.dirs": str(directory), "node.id": "1", **properties}
        )
        meta = ensure_formatted(config, Random(1))
        self.log = MetadataLog(
            config,
            meta,
            TIMERS,
            offload=ExecutorOffload(ThreadPoolExecutor(1)),
            random=Random(1),
        )
        requests = build_node_to_controller(config, self.log.driver, TIMERS, Random(2))
        self.role = ControllerRole(
            config, meta, TIMERS, self.log, Random(2), endpoints={}, requests=requests
        )
        self.channel = LocalControllerChannel(
            self.role.service, when_applied=lambda: Deferred.of(None)
        )
        self.cache = MetadataCache(meta.cluster_id, lambda: self.log.driver.kraft_version)
        self.log.loader.on_image(lambda old, new: setattr(self.cache, "image", new))
        self.lifecycle = BrokerLifecycle(
            LifecycleCore(
                heartbeat_interval_ms=2000,
                registration_timeout_ms=60_000,
                session_timeout_ms=9_000,
            ),
            self.channel,
            TIMERS,
            node_id=1,
            registration=BrokerRegistrationData(
                incarnation_id=random_uuid(Random()),  # another one with each start
                endpoints={"PLAINTEXT": ENDPOINT},
                log_dirs=tuple(meta.directory_ids[path] for path in config.log_dirs),
                previous_broker_epoch=previous_broker_epoch,
            ),
        )
        self.cluster_id = meta.cluster_id

    @property
    def image(self) -> MetadataImage:
        return self.log.loader.image

    @property
    def epoch(self) -> int:
        return self.log.driver.epoch

    @property
    def broker_epoch(self) -> int:
        return self.lifecycle.broker_epoch

    async def start(self) -> None:
        await self.log.start()
        await self.role.start()

    async def stop(self) -> None:
        self.lifecycle.close()
        self.role.close()
        await self.log.stop()
        self.role.closed()


async def start(
    directory: Path, *, previous_broker_epoch: int = -1, **settings: str
) -> MetadataNode:
    """A node whose broker is registered and unfenced."""
    node = MetadataNode(directory, previous_broker_epoch=previous_broker_epoch, **settings)
    await node.start()
    await as_future(node.lifecycle.start())
    await as_future(node.lifecycle.unfence())
    return node


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def topics(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ]
    )


def replayed(directory: Path, cluster_id: str) -> MetadataImage:
    """The image that the log file alone gives."""
    delta = MetadataDelta(MetadataImage(cluster_id=cluster_id))
    offset = epoch = 0
    data = (directory / LOG).read_bytes()
    for position, header in iter_batches(data):
        offset, epoch = header.last_offset, header.partition_leader_epoch
        if not header.is_control:
            batch = data[position : position + header.size_bytes]
            for record in iter_records(batch):
                delta.replay(decode_record(record.value or b""))
    return delta.apply(offset=offset, epoch=epoch)

"""Batches that wait for a thread, and their answers."""

from __future__ import annotations

from typing import Any

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.replication.appends.append import PartitionAppendResult
from tests.replication.world import NOW_MS, TOPIC, World
from tests.sim.offload import HeldOffload

KEY = TopicPartition(TOPIC, 0)
LARGE = 4000
MEGABYTE = 1 << 20


def opened_anew(world: World, **overrides: str) -> HeldOffload:
    """The thread of a world that has one, with a topic of these settings."""
    held = HeldOffload()
    world.replicas.close()
    world.logs.close()
    world.open(held)
    world.host(0, **overrides)
    return held


def large(producer_id: int = -1, sequence: int = -1) -> bytearray:
    return build_batch(
        [(NOW_MS, b"key", bytes(LARGE), [])] * 10,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )


def value(outcome: Any) -> PartitionAppendResult:
    result = outcome.value if isinstance(outcome, Deferred) else outcome
    assert isinstance(result, PartitionAppendResult)
    return result


def middling(sequence: int = -1) -> bytearray:
    return build_batch(
        [(NOW_MS, b"key", bytes(400_000), [])],
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
    )

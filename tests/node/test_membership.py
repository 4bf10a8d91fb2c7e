"""A broker's registration and shutdown in its cluster, on a real metadata log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.node.loop.futures import as_future
from tests.node.metadata_node import run, start, topics
from tests.sim.timers import SimTimers


def test_a_controlled_stop_and_a_clean_start_bump_the_leader_epoch_twice(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        await as_future(node.channel.create_topics(topics("t")))
        await as_future(node.lifecycle.shut_down())
        partition = node.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.elr) == (-1, (1,))
        epoch = node.broker_epoch
        await node.stop()
        again = await start(tmp_path, previous_broker_epoch=epoch)
        partition = again.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 2)
        assert partition.leader_recovery_state == 0
        assert again.broker_epoch > epoch
        await again.stop()

    run(script)


def test_producer_ids_are_handed_out_once(tmp_path: Path) -> None:
    async def life(count: int) -> list[int]:
        node = await start(tmp_path)
        manager = ProducerIdManager(
            lambda: node.channel.allocate_producer_ids(node.broker_epoch), SimTimers()
        )
        ids = []
        for _ in range(count):
            ids.append(await as_future(manager.next_id()))
        await node.stop()
        return ids

    async def script() -> None:
        ids = [*(await life(3)), *(await life(2500)), *(await life(1))]
        assert ids[:4] == [0, 1, 2, 1000]
        assert max(Counter(ids).values()) == 1

    run(script)

"""Clients that observe followers and committed offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from kbroker.simulation.producers import produce
from kbroker.simulation.watchers import PLACE, OffsetWatcher, ReplicaReader
from kbroker.simulation.workload import EVENTS, LEDGER, PARTITIONS, Workload
from kbroker.testing.cluster_state import create_topics
from kbroker.testing.history.operations import Guarantee
from tests.simulation.worlds import SimulatedWorld


def test_each_node_is_read_and_offsets_are_followed(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    workload = Workload(world.bootstrap, Random(2), lambda line: None, world.failures.append)
    history = workload.history

    async def script() -> None:
        for node in world.cluster.nodes.values():
            node.start()
        await create_topics(world.bootstrap, {EVENTS: PARTITIONS, LEDGER: PARTITIONS}, 3)
        writing = asyncio.ensure_future(produce(workload, "p", Guarantee.IDEMPOTENT))
        watching = [asyncio.ensure_future(OffsetWatcher(workload, "watched").run())]
        for node_id in world.cluster.nodes:
            watching.append(asyncio.ensure_future(ReplicaReader(workload, node_id).run()))
        await asyncio.sleep(4)
        workload.is_stopping = True
        await writing
        await asyncio.sleep(2)
        for task in watching:
            task.cancel()

    world.run(script)
    read = {}
    for record in history.reads:
        read.setdefault(record.reader, set()).add((record.partition, record.offset))
    assert sorted(read) == [f"reader of node {node_id}" for node_id in (1, 2, 3)]
    assert len({frozenset(records) for records in read.values()}) == 1
    assert len(next(iter(read.values()))) == len(history.sent) > 0
    committed = [commit.offset for commit in history.commits if commit.ended_ms is not None]
    fetched = [fetch.offset for fetch in history.fetches if fetch.offset is not None]
    assert committed == list(range(committed[0], committed[-1] + 1))
    assert fetched == sorted(fetched) and set(fetched) <= set(committed)
    assert len(fetched) > 3 and {fetch.partition for fetch in history.fetches} == {PLACE}

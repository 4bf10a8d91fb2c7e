"""A metadata quorum of two kbroker controllers and one of Apache Kafka 4.3.1: each votes for, leads
and follows the other; the leader is killed or stopped until both have led. In the end all logs have
the same bytes up to the high watermark.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.client.cluster_view import BrokerAddress
from kbroker.model import random_uuid, uuid_to_string
from kbroker.node.futures import as_future
from kbroker.node.timers import LoopTimers
from kbroker.protocol.batch_header import iter_batches
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from scripts.apache_kafka import CLUSTER_ID, free_port
from scripts.kafka_jars import broker_class_path
from spark_jobs.java import java_problem

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

KAFKA = 3
NODES = (1, 2, KAFKA)
MOST_ROUNDS = 10
Partition = DescribeQuorumResponse.PartitionData


class Controllers:
    """Three processes. Node 3 is Kafka's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._java = ["java", "-Xmx256m", "-cp", broker_class_path()]
        self._ports = {node: free_port() for node in NODES}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        voters = ",".join(
            f"{node}@127.0.0.1:{port}:{uuid_to_string(random_uuid(Random(node)))}"
            for node, port in self._ports.items()
        )
        for node, port in self._ports.items():
            self._properties(node).write_text(
                f"node.id={node}\nprocess.roles=controller\nlog.dirs={root / str(node)}\n"
                f"listeners=CONTROLLER://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
                "controller.quorum.bootstrap.servers="
                + ",".join(f"127.0.0.1:{each}" for each in self._ports.values())
            )
            tool = (
                [*self._java, "kafka.tools.StorageTool", "format", "-c"]
                if node == KAFKA
                else [sys.executable, "-m", "kbroker", "format"]
            )
            options = ["-t", CLUSTER_ID, "--initial-controllers", voters]
            command = [*tool, str(self._properties(node)), *options]
            subprocess.run(command, check=True, capture_output=True)

    def _properties(self, node: int) -> Path:
        return self._root / f"{node}.properties"

    def start(self, node: int) -> None:
        program = (
            [*self._java, "kafka.Kafka"]
            if node == KAFKA
            else [sys.executable, "-m", "kbroker", "serve"]
        )
        with (self._root / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [*program, str(self._properties(node))], stdout=log, stderr=log
            )

    def end(self, node: int, how: signal.Signals) -> None:
        process = self._processes.pop(node)
        process.send_signal(how)
        process.wait(60)

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(60)

    async def describe(self, channel: Channel) -> Partition | None:
        """The quorum as its leader sees it; None if no node leads."""
        for node in self._processes:
            request = DescribeQuorumRequest(
                topics=[
                    DescribeQuorumRequest.TopicData(
                        topic_name="__cluster_metadata",
                        partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
                    )
                ]
            )
            address = BrokerAddress(node, "127.0.0.1", self._ports[node])
            with suppress(KafkaError):
                response = await as_future(
                    channel.send(address, "test", request, DescribeQuorumResponse, timeout_ms=3000)
                )
                partition = response.topics[0].partitions[0]
                if not partition.error_code and partition.high_watermark > 0:
                    return partition
        return None

    def committed(self, node: int, high_watermark: int) -> bytes:
        """The bytes of a log up to the high watermark, which is at the end of a batch."""
        path = self._root / str(node) / "__cluster_metadata-0" / f"{0:020d}.log"
        data = path.read_bytes()
        end = 0
        for position, header in iter_batches(data, partial_ok=True):
            if header.next_offset <= high_watermark:
                end = position + header.size_bytes
        return data[:end]


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    controllers = Controllers(tmp_path)
    yield controllers
    controllers.stop()


def test_kbroker_and_kafka_lead_and_follow_each_other(controllers: Controllers) -> None:
    async def described(channel: Channel, is_it: Callable[[Partition], bool]) -> Partition:
        async with asyncio.timeout(60):
            while True:
                found = await controllers.describe(channel)
                if found is not None and is_it(found):
                    return found
                await asyncio.sleep(0.2)

    def all_fetch(partition: Partition) -> bool:
        replicas = {each.replica_id: each.log_end_offset for each in partition.current_voters}
        return all(replicas[node] >= partition.high_watermark - 10 for node in NODES)

    async def script() -> int:
        loop = asyncio.get_running_loop()
        timers = LoopTimers(loop)
        channel = Channel(AsyncioStreams(loop), timers, Random(1), client_id="test")
        for node in (KAFKA, 1, 2):
            controllers.start(node)
        led, epoch = set[bool](), 0
        for number in range(MOST_ROUNDS):
            partition = await described(channel, all_fetch)
            assert partition.leader_epoch >= epoch
            leader, epoch = partition.leader_id, partition.leader_epoch
            controllers.end(leader, signal.SIGKILL if number % 2 else signal.SIGTERM)
            await described(channel, lambda found, old=epoch: found.leader_epoch > old)
            led.add(leader == KAFKA)
            controllers.start(leader)
            if len(led) == 2:
                break
        assert led == {True, False}
        partition = await described(channel, all_fetch)
        await described(channel, lambda found: found.high_watermark > partition.high_watermark + 10)
        channel.close()
        return partition.high_watermark

    high_watermark = asyncio.run(script())
    controllers.stop()
    logs = [controllers.committed(node, high_watermark) for node in NODES]
    assert logs[0] and logs[0] == logs[1] == logs[2]

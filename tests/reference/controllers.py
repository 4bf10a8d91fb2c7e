"""Controllers of kbroker and of Apache Kafka 4.3.1 in one metadata quorum, each in a process of its
own, and Kafka's command line tools beside them.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

from kbroker.client.channel.asyncio_streams import AsyncioStreams
from kbroker.client.channel.channel import Channel
from kbroker.client.cluster_view import BrokerAddress
from kbroker.model import random_uuid, uuid_to_string
from kbroker.node.loop.futures import as_future
from kbroker.node.loop.timers import LoopTimers
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from scripts.apache_kafka import CLUSTER_ID
from scripts.kafka_jars import broker_class_path
from scripts.ports import free_port

Partition = DescribeQuorumResponse.PartitionData

JAVA = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp")
WAIT_S = 60
STOP_S = 60


def run_class(name: str, *arguments: str, class_path: str | None = None) -> str:
    """Standard output of one of Kafka's tools. Raises AssertionError if it fails."""
    command = [*JAVA, class_path or broker_class_path(), name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Controllers:
    """A dynamic quorum (KIP-853). voters: its first ones; spares: controllers that are no voters.
    kafka: which of them are Kafka's. settings: of all of them.
    """

    def __init__(
        self,
        root: Path,
        voters: Iterable[int],
        *,
        spares: Iterable[int] = (),
        kafka: Iterable[int] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self.voters, spares = tuple(voters), tuple(spares)
        self.kafka = frozenset(kafka)
        self.ports = {node: free_port() for node in (*self.voters, *spares)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        named = ",".join(
            f"{node}@127.0.0.1:{self.ports[node]}:{self.directory_id(node)}" for node in self.voters
        )
        for node, port in self.ports.items():
            properties = {
                "node.id": str(node),
                "process.roles": "controller",
                "log.dirs": str(root / str(node)),
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": self.bootstrap,
                **(settings or {}),
            }
            lines = (f"{key}={value}\n" for key, value in properties.items())
            self.properties(node).write_text("".join(lines))
            is_voter = node in self.voters
            shape = ["--initial-controllers", named] if is_voter else ["--no-initial-controllers"]
            tool = (
                [*JAVA, broker_class_path(), "kafka.tools.StorageTool", "format", "-c"]
                if node in self.kafka
                else [sys.executable, "-m", "kbroker", "format"]
            )
            command = [*tool, str(self.properties(node)), "-t", CLUSTER_ID, *shape]
            subprocess.run(command, check=True, capture_output=True)

    @property
    def bootstrap(self) -> str:
        """host:port of each node's listener."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def directory_id(self, node: int) -> str:
        """Of a first voter, as it was formatted; of a spare, as its meta.properties has it."""
        if node in self.voters:
            return uuid_to_string(random_uuid(Random(node)))
        lines = (self._root / str(node) / "meta.properties").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("directory.id="))
        return line.partition("=")[2]

    def properties(self, node: int) -> Path:
        """The node's server.properties."""
        return self._root / f"{node}.properties"

    def metadata_log(self, node: int) -> Path:
        """The folder of the node's metadata log."""
        return self._root / str(node) / "__cluster_metadata-0"

    def start(self, *nodes: int) -> None:
        """Start these nodes, all of them if none is named."""
        for node in nodes or self.ports:
            program = (
                [*JAVA, broker_class_path(), "kafka.Kafka"]
                if node in self.kafka
                else [sys.executable, "-m", "kbroker", "serve"]
            )
            with (self._root / f"{node}.log").open("ab") as log:
                self._processes[node] = subprocess.Popen(
                    [*program, str(self.properties(node))], stdout=log, stderr=log
                )

    def end(self, node: int, how: signal.Signals) -> None:
        """Send a signal and wait for the end of the process."""
        process = self._processes.pop(node)
        process.send_signal(how)
        process.wait(STOP_S)

    def stop(self) -> None:
        """Stop all nodes in order."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(STOP_S)
        self._processes.clear()

    def run(self, script: Callable[[Watch], Awaitable[None]]) -> None:
        """Run a script beside the processes."""

        async def all_of_it() -> None:
            loop = asyncio.get_running_loop()
            streams = AsyncioStreams(loop)
            channel = Channel(streams, LoopTimers(loop), Random(1), client_id="test")
            try:
                await script(Watch(self, channel))
            finally:
                channel.close()

        asyncio.run(all_of_it())

    def committed(self, node: int, high_watermark: int) -> bytes:
        """The bytes of a log up to the high watermark, which is at the end of a batch."""
        data = (self.metadata_log(node) / f"{0:020d}.log").read_bytes()
        end = 0
        for position, header in iter_batches(data, partial_ok=True):
            if header.next_offset <= high_watermark:
                end = position + header.size_bytes
        return data[:end]

    @property
    def running(self) -> list[int]:
        """The nodes that were started and not ended."""
        return sorted(self._processes)


class Watch:
    """Asks the nodes what they know of the quorum."""

    def __init__(self, controllers: Controllers, channel: Channel) -> None:
        self._controllers = controllers
        self._channel = channel

    async def described(self, is_it: Callable[[Partition], bool] = lambda _: True) -> Partition:
        """The quorum as its leader sees it, once it is like that."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = await self._describe()
                if found is not None and is_it(found):
                    return found
                await asyncio.sleep(0.2)

    async def _describe(self) -> Partition | None:
        for node in self._controllers.running:
            request = DescribeQuorumRequest(
                topics=[
                    DescribeQuorumRequest.TopicData(
                        topic_name="__cluster_metadata",
                        partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
                    )
                ]
            )
            address = BrokerAddress(node, "127.0.0.1", self._controllers.ports[node])
            with suppress(KafkaError):
                response = await as_future(
                    self._channel.send(
                        address, "test", request, DescribeQuorumResponse, timeout_ms=3000
                    )
                )
                partition = response.topics[0].partitions[0]
                if not partition.error_code and partition.high_watermark > 0:
                    return partition
        return None


def voters_of(partition: Partition) -> set[int]:
    """The ids of the voters."""
    return {each.replica_id for each in partition.current_voters}


def all_fetch(partition: Partition) -> bool:
    """Whether every voter has nearly all of the log."""
    high_watermark = partition.high_watermark
    return all(each.log_end_offset >= high_watermark - 10 for each in partition.current_voters)

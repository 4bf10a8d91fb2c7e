"""The controller listener of a combined node under attack: what the metadata quorum, its brokers
and its controllers are called, and what an Envelope may carry.

An attack may change the quorum legitimately: a vote in a higher epoch, a broker that leaves, a
voter. `ControllerWorld.has_changed` tells, so that the next attack finds a fresh node. The
neighbour `attack_world` has what is attacked on broker listeners.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from benchmarks.attack_bodies import Attack, Generator, name_of
from benchmarks.attack_values import (
    DESCRIBE_QUORUM_FRAME,
    OTHER_DIRECTORY_ID,
    OTHER_NODE_ID,
    Names,
    Path,
)
from benchmarks.attack_world import TOPICS, World, first_error
from kbroker.metadata.records import decode_record
from kbroker.protocol.apis import APIS, ApiKey
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.codecs.primitives import unsigned_varint
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest
from kbroker.protocol.messages.quorum import DescribeQuorumRequest
from kbroker.protocol.messages.stored.metadata_records import RegisterBrokerRecord
from kbroker.server.handlers import controller_handlers
from tests.e2e.wire import call

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
FETCH_BYTES: Final = 8 << 20
WIDE_PARTITIONS: Final = 100
"""Of the topic "wide": a node is started very often."""

PATIENCE_S: Final = 5.0

DEAD_PORT: Final = 1
"""Of endpoints that are told to the quorum: connecting to it fails at once."""

REQUEST_DATA: Final[Path] = ("request_data",)
PRINCIPAL: Final[Path] = ("request_principal",)
ADDRESS: Final[Path] = ("client_host_address",)
MOVING: Final = frozenset({
    ApiKey.ALTER_PARTITION, ApiKey.ASSIGN_REPLICAS_TO_DIRS, ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
})  # fmt: skip
"""APIs whose records change what the next attack names. In Envelopes they are not sent."""

ENVELOPED: Final = frozenset({"valid", "repeated", "distinct"})
"""Kinds of attacks that are sent in an Envelope, too."""


class QuorumView(NamedTuple):
    """The metadata quorum as its leader describes it."""

    leadership: tuple[int, int]
    """The leader's id, and its epoch."""

    voters: tuple[tuple[int, bytes], ...]
    """Ids and directory ids."""

    end_offset: int


class ControllerWorld(World):
    """A combined node. controller_port: of its controller listener."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        controller_port: int = 0,
        wide_partitions: int = WIDE_PARTITIONS,
    ) -> None:
        super().__init__(host, port, wide_partitions=wide_partitions)
        self._host = host
        self._controller_port = controller_port

    def prepare(self) -> None:
        """See World: topics are enough."""
        for name in ("plain", "wide"):
            partitions, configs = TOPICS[name]
            self._create(name, min(partitions, self._wide_partitions), configs)

    def state(self) -> QuorumView | None:
        """The quorum as it is now; None while it has no leader, or the node does not answer."""
        try:
            with self._to_controller() as connection:
                return self._described(connection)
        except (OSError, struct.error):
            return None

    def has_changed(self, before: QuorumView | None, api_key: int) -> bool:
        """Whether another node is needed after an attack on that API."""
        now = self.state()
        if now is None or before is None:
            return True
        return now != before if api_key in MOVING else now[:2] != before[:2]

    def _to_controller(self) -> socket.socket:
        return socket.create_connection((self._host, self._controller_port), timeout=PATIENCE_S)

    def _described(self, connection: socket.socket) -> QuorumView | None:
        kind = DescribeQuorumRequest
        partition = kind.PartitionData(partition_index=0)
        topic = kind.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        answer: Any = call(connection, kind(topics=[topic]), 2)
        if first_error(answer):
            return None
        (described,) = answer.topics[0].partitions
        voters = tuple(
            (voter.replica_id, voter.replica_directory_id) for voter in described.current_voters
        )
        ends = [voter.log_end_offset for voter in described.current_voters]
        return QuorumView((described.leader_id, described.leader_epoch), voters, max(ends))

    def _registration(self, view: QuorumView) -> tuple[RegisterBrokerRecord, int]:
        """The newest registration of the node's broker, and its offset, which is its epoch."""
        found: list[tuple[RegisterBrokerRecord, int]] = []
        offset = epoch = 0
        _, leader_epoch = view.leadership
        with self._to_controller() as connection:
            while offset < view.end_offset:
                partition = FetchRequest.FetchPartition(
                    partition=0, current_leader_epoch=leader_epoch, fetch_offset=offset,
                    last_fetched_epoch=epoch, partition_max_bytes=FETCH_BYTES,
                )  # fmt: skip
                topic = FetchRequest.FetchTopic(topic=METADATA_TOPIC, partitions=[partition])
                request = FetchRequest(replica_id=-1, max_bytes=FETCH_BYTES, topics=[topic])
                answer: Any = call(connection, request, 12)
                data = bytes(answer.responses[0].partitions[0].records or b"")
                begun = offset
                for position, header in iter_batches(data, partial_ok=True):
                    offset, epoch = header.last_offset + 1, header.partition_leader_epoch
                    if header.is_control:
                        continue
                    for record in iter_records(data[position:], header):
                        decoded = decode_record(bytes(record.value or b""))
                        if isinstance(decoded, RegisterBrokerRecord):
                            found.append((decoded, record.offset))
                if offset == begun:
                    raise RuntimeError(f"the metadata log ends at {offset}: {answer}")
        return found[-1]

    def join(self) -> dict[int, Sequence[Names]]:
        """See World. Each list begins with names that change nothing in the cluster."""
        view = self.state()
        if view is None:
            raise RuntimeError("the metadata quorum has no leader")
        registration, broker_epoch = self._registration(view)
        cluster: Any = self._call(DescribeClusterRequest(), 0)
        node_id = registration.broker_id
        leader_id, epoch = view.leadership
        quorum = Names(
            "quorum", topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, node_id=node_id,
            leader_id=leader_id, cluster_id=cluster.cluster_id, quorum_epoch=epoch,
            last_fetched_epoch=0, broker_epoch=broker_epoch, log_end_offset=view.end_offset,
            directory_id=registration.log_dirs[0], voter_directory_id=dict(view.voters)[node_id],
            port=self._controller_port,
        )  # fmt: skip
        new = replace(
            quorum, label="another node", case="other", node_id=OTHER_NODE_ID,
            leader_id=OTHER_NODE_ID, voter_directory_id=OTHER_DIRECTORY_ID, port=DEAD_PORT,
            directory_id=OTHER_DIRECTORY_ID,
        )  # fmt: skip
        later = replace(
            quorum, label="the next epoch", case="later", quorum_epoch=epoch + 1,
            leader_id=OTHER_NODE_ID, port=DEAD_PORT,
        )  # fmt: skip
        own = replace(quorum, label="this node", case="own")
        observer = replace(quorum, label="an observer", case="observer", replica_id=OTHER_NODE_ID)
        leaving = replace(own, label="a broker that stops", case="stops", wants_shut_down=True)
        topics = self._topics(quorum)
        return {
            0: [quorum],
            ApiKey.VOTE: [quorum, later],
            ApiKey.BEGIN_QUORUM_EPOCH: [quorum, later],
            ApiKey.END_QUORUM_EPOCH: [quorum, later],
            ApiKey.FETCH: [quorum, observer],
            ApiKey.FETCH_SNAPSHOT: [quorum, observer],
            ApiKey.BROKER_REGISTRATION: [new, own],
            ApiKey.BROKER_HEARTBEAT: [own, leaving],
            ApiKey.UNREGISTER_BROKER: [new, own],
            ApiKey.CONTROLLER_REGISTRATION: [own, new],
            ApiKey.ALTER_PARTITION: topics,
            ApiKey.ASSIGN_REPLICAS_TO_DIRS: topics,
            ApiKey.ADD_RAFT_VOTER: [new, own],
            ApiKey.REMOVE_RAFT_VOTER: [new, own],
            ApiKey.UPDATE_RAFT_VOTER: [own, new],
        }

    def _topics(self, quorum: Names) -> list[Names]:
        answer: Any = self._call(MetadataRequest(topics=None), 10)
        found = {topic.name: topic for topic in answer.topics}
        return [
            replace(
                quorum, label=name, topic=name, topic_id=found[name].topic_id,
                partitions=len(found[name].partitions), case=name,
                leader_epoch=found[name].partitions[0].leader_epoch,
                partition_epoch=found[name].partitions[0].leader_epoch,
            )
            for name in ("wide", "plain")
        ]  # fmt: skip


# -- Envelopes ------------------------------------------------------------------------------------


def envelope_payloads(
    names: Names, size: int
) -> Iterator[tuple[str, Callable[[], Mapping[Path, Any]]]]:
    """What an Envelope may carry, by name: the attacks on the APIs that brokers forward, in their
    highest version; an Envelope; principals and addresses. size: of most, in bytes.
    """
    world = replace(names, topic="plain", resource_name="plain")
    for handler in sorted(controller_handlers(), key=lambda each: each.api_key):
        if not APIS[handler.api_key].forwardable or handler.api_key in MOVING:
            continue
        generator = Generator(handler.api_key, handler.max_version, [world], size)
        for attack in generator.attacks():
            if attack.kind in ENVELOPED:
                told = f"{name_of(attack.api_key)} {attack.kind}: {attack.detail}"
                yield told, lambda attack=attack: {REQUEST_DATA: _inner(attack)}  # type: ignore[misc]
    inner = DESCRIBE_QUORUM_FRAME
    head = struct.pack(">hhi", ApiKey.ENVELOPE, 0, 1) + b"\0\6attack\0"
    values: dict[str, Mapping[Path, Any]] = {
        "an Envelope": {REQUEST_DATA: head + b"\2x\1\1\0"},
        "no header": {REQUEST_DATA: inner[:3]},
        "a client id of 2^15-1 bytes": {REQUEST_DATA: inner[:8] + b"\x7f\xff" + inner[10:]},
        "an unknown API": {REQUEST_DATA: b"\x7f\xff" + inner[2:]},
        "an unknown version": {REQUEST_DATA: inner[:2] + b"\x7f\xff" + inner[4:]},
        "zeros behind the request": {REQUEST_DATA: inner + bytes(size)},
        "a principal of all": {PRINCIPAL: b"\0\0\5User" + _compact(size) + b"x" * size + b"\0\0"},
        "a principal of newlines": {
            PRINCIPAL: b"\0\0\5User" + _compact(size) + b"\n" * size + b"\0\0"
        },
        "a principal that claims 2^31-1 bytes": {PRINCIPAL: b"\0\0\5User" + _compact(2**31 - 2)},
        "a principal with 100,000 tags": {
            PRINCIPAL: b"\0\0\5User\2x\0" + b"\xa0\x8d\x06" + b"\x7f\0" * min(100_000, size // 2)
        },
        "an unknown version of the principal": {PRINCIPAL: b"\x7f\xff" + bytes(100)},
        "an address of 16 bytes": {ADDRESS: b"\xff" * 16},
        "an address of 5 bytes": {ADDRESS: bytes(5)},
    }  # fmt: skip
    for name, fields in values.items():
        yield name, lambda fields=fields: fields  # type: ignore[misc]  # bound now


def _inner(attack: Attack) -> bytes:
    """A request without its length."""
    return attack.frame(7)[4:]


def _compact(count: int) -> bytes:
    """The length of a compact string."""
    return unsigned_varint(count + 1)

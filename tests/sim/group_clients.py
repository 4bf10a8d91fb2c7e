"""Clients of the group coordinators of `two_brokers`, and what a coordinator knows as far as
requests show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from kbroker.coordinator.group.service import GroupCoordinator
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.replication.time_slices import FairSlices
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.observed import in_flux, plain
from tests.coordinator.simulation import Context, MemoryLog
from tests.sim.timers import SimTimers
from tests.sim.two_brokers import GROUP_PARTITION, Cluster, SimBroker

PARTITION = GROUP_PARTITION.partition


class GroupClient:
    """How a client finds the coordinator: it asks one broker, whose metadata may be old. It takes
    the place of a `World` for the members of `tests/coordinator/group`.
    """

    def __init__(self, cluster: Cluster, asks: int = 1) -> None:
        self.cluster = cluster
        self.asks = asks
        self.timers = cluster.timers

    @property
    def broker(self) -> SimBroker:
        """The coordinator's broker, as the asked one knows."""
        asked = self.cluster.brokers[self.asks]
        partition = asked.cache.image.partition(*GROUP_PARTITION)
        known = None if partition is None else self.cluster.brokers.get(partition.leader)
        return known or asked

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.broker.groups

    def commit(
        self, group_id: str, offsets: dict[int, int], *, topic: str = "events"
    ) -> Deferred[ErrorCode]:
        """OffsetCommit of a client that is in no group; the error of its first partition."""
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ],
        )
        response = in_steps(
            self.broker.replicas.fair_slices,
            self.coordinator.offsets.commit(Context(9), request),
        )
        return response.then(lambda done: ErrorCode(done.topics[0].partitions[0].error_code))


def in_steps(slices: FairSlices, steps: Any) -> Deferred[Any]:
    """What the generator returns, once its last step is taken."""
    answer: Deferred[Any] = Deferred()

    def run() -> Iterator[Deferred[Any] | None]:
        answer.resolve((yield from steps))

    def over(failure: Exception | None) -> None:
        if isinstance(failure, KafkaError):
            answer.fail(failure)
        elif failure is not None:
            raise failure

    slices.begin(run(), over)
    return answer


def reloaded(cluster: Cluster, broker: SimBroker) -> GroupCoordinator:
    """Another coordinator, on a clock of its own, that loads what is in the broker's log now."""
    timers = SimTimers()
    timers.time_ms = cluster.timers.time_ms
    log = MemoryLog()
    log.batches[GROUP_PARTITION] = [data for _, data in broker.stored(GROUP_PARTITION)]
    coordinator = GroupCoordinator(
        GroupCoordinatorConfig.from_broker(broker.config),
        log=log,
        timers=timers,
        random=Random(0),
        topics=lambda: broker.cache.image,
    )
    coordinator.on_leadership(PARTITION, 1)
    timers.advance(0)
    return coordinator


def not_durable(coordinator: GroupCoordinator) -> frozenset[str]:
    """Classic groups in the middle of a rebalance, or without a record so far."""
    shard = coordinator.runtime.host(PARTITION).shard
    bare = {
        group_id
        for group_id in shard.classic.groups
        if group_id not in shard.classic.metadata and not shard.offsets.has_group(group_id)
    }
    return in_flux(shard) | bare


def known(coordinator: GroupCoordinator, besides: frozenset[str] = frozenset()) -> dict[str, Any]:
    """What ListGroups, the descriptions and the committed offsets say once all is committed; of the
    groups `besides` the offsets only.
    """
    shard = coordinator.runtime.host(PARTITION).shard
    listed = [
        group
        for group in shard.list_groups(frozenset(), frozenset())
        if group.group_id not in besides
    ]
    described: dict[str, Any] = {}
    for group in listed:
        if group.group_type == "classic":
            about, members = coordinator.describe_group(group.group_id, 5)
        else:
            about, members = coordinator.consumer_describe(group.group_id)
        described[group.group_id] = plain(about), sorted(map(repr, members))
    return {
        "listed": sorted((one.group_id, one.group_type, one.group_state) for one in listed),
        "described": described,
        "offsets": {
            group_id: plain(shard.offsets.of_group(group_id)) for group_id in shard.offsets.groups()
        },
    }

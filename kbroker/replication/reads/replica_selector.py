"""Which replica a consumer reads from: the closest one (KIP-392).

Only the leader chooses, among the members of the ISR that have the offset: the consumer is told to
fetch from that replica, and gets no records. A follower serves the fetch in `partition_read`.
`replica.selector.class` names the selector (`settings.rules`).
"""

from __future__ import annotations

from typing import Protocol

from kbroker.replication.partition import Partition


class BrokerRacks(Protocol):
    """The racks of brokers, according to the metadata."""

    def rack_of(self, broker_id: int, listener_name: str) -> str | None:
        """The rack of a broker that is not fenced and that clients reach on that listener. None: no
        rack, or no such broker.
        """
        ...


class RackAwareSelector:
    """Kafka's RackAwareReplicaSelector: a replica in the client's rack, unless the leader is in it,
    and of several the most caught-up one.
    """

    __slots__ = ("_racks",)

    def __init__(self, racks: BrokerRacks) -> None:
        self._racks = racks

    def select(
        self, partition: Partition, fetch_offset: int, rack: str, listener_name: str, now_ms: int
    ) -> int | None:
        """The broker that a consumer in the rack is to read a partition from, which is led here;
        None: this one.
        """
        rack_of = self._racks.rack_of
        if rack_of(partition.node_id, listener_name) == rack:
            return None
        best: tuple[int, int, int] | None = None
        isr = partition.isr
        for replica_id, remote in partition.remotes.items():
            if (
                replica_id in isr
                and remote.log_start_offset <= fetch_offset <= remote.log_end_offset
                and rack_of(replica_id, listener_name) == rack
            ):
                lag_ms = now_ms - remote.last_caught_up_ms
                rank = remote.log_end_offset, -lag_ms, replica_id
                best = rank if best is None else max(best, rank)
        return None if best is None else best[2]


class ClosestReplica:
    """The choice for one consumer, whose Fetch requests come by a listener."""

    __slots__ = ("_listener_name", "_rack", "_selector")

    def __init__(self, selector: RackAwareSelector, rack: str, listener_name: str) -> None:
        self._selector = selector
        self._rack = rack
        self._listener_name = listener_name

    def of(self, partition: Partition, fetch_offset: int, now_ms: int) -> int | None:
        """The broker to read from; None: this one, also where it does not lead."""
        if not partition.is_leader:
            return None
        return self._selector.select(
            partition, fetch_offset, self._rack, self._listener_name, now_ms
        )

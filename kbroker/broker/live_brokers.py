"""Which brokers of the cluster are alive, for the leaders of partitions here (KIP-841, KIP-903).

Read from the metadata loader's image. That of `metadata_cache` changes only after the orders of a
new image were carried out: an order that removes a dead broker from an ISR would find it alive, and
the high watermark would wait for it, with no later order to end that.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.metadata.image import MetadataImage


class LiveBrokers:
    """`replication.leaders.isr.ClusterBrokers`. image: gives the newest committed image."""

    __slots__ = ("_image",)

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def live_epoch(self, broker_id: int) -> int | None:
        """See `ClusterBrokers`."""
        broker = self._image().brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.epoch

    def is_shutting_down(self, broker_id: int) -> bool:
        """See `ClusterBrokers`."""
        broker = self._image().brokers.get(broker_id)
        return broker is not None and broker.in_controlled_shutdown

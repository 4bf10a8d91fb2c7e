"""The metadata as this broker's clients see it (Kafka's KRaftMetadataCache).

The image here may be behind the metadata loader's: it is replaced once this broker has carried out
what a new image orders (`metadata_listener`). A client that learned of a leader which does not host
the partition yet would send its records too early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.metadata.features import KRAFT_VERSION
from kbroker.metadata.image import MetadataImage


class MetadataCache:
    """image: hold it in a local for the length of one call, never longer. kraft_version: gives the
    finalized kraft.version, which is a fact of the quorum and in no image.
    """

    __slots__ = ("_kraft_version", "image")

    def __init__(self, cluster_id: str, kraft_version: Callable[[], int]) -> None:
        self._kraft_version = kraft_version
        self.image = MetadataImage(cluster_id=cluster_id)

    def rack_of(self, broker_id: int, listener_name: str) -> str | None:
        """See `replication.reads.replica_selector.BrokerRacks`."""
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.fenced or listener_name not in broker.endpoints:
            return None
        return broker.rack

    def finalized_features(self) -> Mapping[str, int]:
        """Finalized levels for ApiVersions, kraft.version included; they hold as of
        `image.offset`.
        """
        features = dict(self.image.features)
        kraft_version = self._kraft_version()
        if kraft_version > 0:
            features[KRAFT_VERSION] = kraft_version
        return features

"""Features of KIP-584: what this release supports, what a new cluster is finalized at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.metadata.image import ELIGIBLE_LEADER_REPLICAS, METADATA_VERSION
from kbroker.protocol.messages.metadata_records import FeatureLevelRecord

KRAFT_VERSION: Final = "kraft.version"

SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    "group.version": (0, 1),
    KRAFT_VERSION: (0, 1),
    METADATA_VERSION: (7, 30),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
    ELIGIBLE_LEADER_REPLICAS: (0, 1),
}
"""Both ends inclusive. metadata.version 7 is 3.3-IV3, 30 is 4.3-IV0."""

LATEST_METADATA_VERSION: Final = 30
LATEST_METADATA_VERSION_NAME: Final = "4.3-IV0"

DEFAULT_LEVELS: Final[Mapping[str, int]] = {
    METADATA_VERSION: LATEST_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS: 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""What a new cluster starts with, in the order Kafka writes it: metadata.version first, then by
name.
"""


def default_feature_records() -> list[FeatureLevelRecord]:
    """The content of a new bootstrap.checkpoint."""
    return [
        FeatureLevelRecord(name=name, feature_level=level) for name, level in DEFAULT_LEVELS.items()
    ]

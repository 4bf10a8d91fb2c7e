"""Features of KIP-584: what this release supports. `quorum/formatting/bootstrap` has the finalized
levels of a new cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.metadata.image import ELIGIBLE_LEADER_REPLICAS, METADATA_VERSION

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

REGISTRATION_LEVEL: Final = 15
"""metadata.version (3.7-IV0) from which controllers register (KIP-919)."""

CORDONED_DIRECTORIES_LEVEL: Final = 30
"""metadata.version (4.3-IV0) from which registrations have the cordoned directories."""

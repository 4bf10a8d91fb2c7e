"""`bootstrap.checkpoint`: the metadata records a new cluster begins with, framed. What they mean is
metadata's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.protocol import codec
from kbroker.protocol.messages.metadata_records import FeatureLevelRecord

METADATA_VERSION_NAME: Final = "4.3-IV0"

DEFAULT_LEVELS: Final[Mapping[str, int]] = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""Features of a new cluster in the order Kafka writes them: metadata.version first, then by
name.
"""


def default_bootstrap_records() -> list[bytes]:
    """One FeatureLevelRecord for each of DEFAULT_LEVELS, framed (frame version, type, version,
    body).
    """
    frame = bytes((1, FeatureLevelRecord.API_KEY, 0))
    return [
        frame + codec.encode(FeatureLevelRecord(name=name, feature_level=level), 0)
        for name, level in DEFAULT_LEVELS.items()
    ]

"""The common part of OffsetCommit and OffsetFetch."""

from __future__ import annotations

from typing import Final

TOPIC_ID_VERSION: Final = 10
"""From this version on OffsetCommit and OffsetFetch have topic ids instead of names."""
OFFSETS_PER_STEP: Final = 500
"""How many topics and partitions of a fetch or a commit are processed between two pauses."""

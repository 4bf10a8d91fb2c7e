"""The common part of OffsetCommit and OffsetFetch."""

from __future__ import annotations

from typing import Final

TOPIC_ID_VERSION: Final = 10
"""From this version on OffsetCommit and OffsetFetch name topics by id."""
OFFSETS_PER_STEP: Final = 500
"""Topics and partitions of a fetch or a commit between two pauses."""

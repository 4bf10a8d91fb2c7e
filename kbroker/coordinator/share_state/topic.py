"""The topic of the share coordinator and its keys, for those who do not need the coordinator."""

from __future__ import annotations

from typing import Final

from kbroker.model import uuid_from_string

SHARE_TOPIC: Final = "__share_group_state"


def is_coordinator_key(text: str) -> bool:
    """Whether text is a key of FindCoordinator: a group, a topic's id and a partition."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0]:
        return False
    try:
        uuid_from_string(parts[1])
        int(parts[2])
    except ValueError:
        return False
    return True

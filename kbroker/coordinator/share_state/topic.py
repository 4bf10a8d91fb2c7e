"""The topic of the share coordinator and its keys, for modules that do not need the coordinator."""

from __future__ import annotations

import re
from typing import Final

from kbroker.model import uuid_from_string

SHARE_TOPIC: Final = "__share_group_state"

_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes."""
_INT_TEXT: Final = re.compile(r"[+-]?[0-9]+")
"""The text that Integer.parseInt accepts, if it is in range; `int` accepts more, such as `1_0`."""


def is_coordinator_key(text: str) -> bool:
    """Whether text is a key of FindCoordinator: a group id, a topic id and a partition (Kafka's
    SharePartitionKey).
    """
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0].strip(_TRIMMED) or not _INT_TEXT.fullmatch(parts[2]):
        return False
    try:
        uuid_from_string(parts[1])
        return -(2**31) <= int(parts[2]) < 2**31
    except ValueError:
        return False

"""Group and member epochs with a special meaning, the same for every group type that has epochs
(KIP-848, KIP-932, KIP-1071).
"""

from __future__ import annotations

from typing import Final

LEAVE_EPOCH: Final = -1
"""The member epoch of a heartbeat with which a member leaves its group."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch of a static member that leaves and will return."""
FIRST_EPOCH: Final = 1
"""The epoch of a group before the first member joins."""
MEMBER_EPOCH_VERSION: Final = 9
"""The first version of OffsetCommit and OffsetFetch that carries a member epoch."""

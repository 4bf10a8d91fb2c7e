"""All sessions, by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.clients.compared import (
    cluster,
    configs,
    consumer_groups,
    groups,
    load,
    partitions,
    topics,
    transactions,
)
from tests.clients.compared.row import Session

SESSIONS: Final[Mapping[str, Session]] = {
    session.name: session
    for room in (
        topics,
        configs,
        consumer_groups,
        partitions,
        cluster,
        groups,
        transactions,
        load,
    )
    for session in room.SESSIONS
}

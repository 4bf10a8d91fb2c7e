"""`lag`: how far queries are behind, by partition, from their checkpoints and their groups.

It needs neither Spark nor Java, and changes nothing: a query may run meanwhile.
"""

from __future__ import annotations

import time
from typing import Final

from kbroker.protocol.errors import KafkaError

from ..errors import JobError
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.groups import committed_offsets
from .measuring import measure
from .options import LagOptions
from .queries import Position, checkpoint_positions
from .report import LagReport

RETRY_S: Final = 20.0


def lag(options: LagOptions) -> LagReport:
    """Look at checkpoints, groups and topics. Raises JobError."""
    positions = [
        position for location in options.checkpoints for position in checkpoint_positions(location)
    ]
    client = BlockingClient(ClusterAddress(options.bootstrap_servers, retry_timeout_s=RETRY_S))
    try:
        positions += [
            Position("group", group, committed_offsets(client, group)) for group in options.groups
        ]
        return LagReport(measure(client, positions, time.time_ns() // 1_000_000))
    except KafkaError as error:
        raise JobError(f"lag: {error}") from error
    finally:
        client.close()

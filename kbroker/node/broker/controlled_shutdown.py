"""Limits how long a stopping broker waits for its controlled shutdown (`broker/lifecycle`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.node.loop.futures import as_future
from kbroker.protocol.errors import KafkaError
from kbroker.settings.broker import BrokerConfig

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 3.0
CLUSTER_SHUTDOWN_SECONDS: Final = 30.0
"""The timeout of the controlled shutdown: of a node that is its whole cluster, and of a broker
whose leaderships move to other brokers, which first have to read the new leaders. Without a
controller the wait ends earlier (`broker/lifecycle`). Kafka waits 5 minutes.
"""


async def leave_cluster(config: BrokerConfig, lifecycle: BrokerLifecycle) -> None:
    """Returns once the controller has moved all leaderships away and fenced this broker; if that
    takes too long, returns with a log line. Without controlled.shutdown.enable it returns at once,
    and the controller fences the broker after its session timeout.
    """
    if not config.get_bool("controlled.shutdown.enable"):
        return
    seconds = SHUTDOWN_SECONDS if config.is_whole_cluster else CLUSTER_SHUTDOWN_SECONDS
    try:
        async with asyncio.timeout(seconds):
            await as_future(lifecycle.shut_down())
    except (KafkaError, TimeoutError) as error:
        late = "the active controller has not let this broker go in time"
        logger.warning("stopping without a controlled shutdown: %s", str(error) or late)

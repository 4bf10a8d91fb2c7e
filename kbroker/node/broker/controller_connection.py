"""Builds a node's connection to the active controller: the channel between nodes, directed to the
leader of the metadata quorum that this node knows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from kbroker.broker.node_to_controller import ActiveController, NodeToController
from kbroker.client.cluster_view import BrokerAddress
from kbroker.ports import Timers
from kbroker.quorum.driver import QuorumDriver
from kbroker.settings.broker import BrokerConfig

if TYPE_CHECKING:
    from kbroker.client.channel.channel import Channel


def build_node_to_controller(
    config: BrokerConfig, driver: QuorumDriver, timers: Timers, random: Random
) -> NodeToController:
    """Requests go to the first listener of controller.listener.names."""
    name = next(iter(config.controller_listener_names), "")
    channel = NodeToController(
        partial(_open_channel, config.node_id, timers, random),
        lambda: active_controller(driver, name),
        timers,
        request_timeout_ms=config.get_int("controller.socket.timeout.ms"),
    )
    driver.feed.on_leader(lambda epoch, leader_id: channel.leader_changed())
    return channel


def active_controller(driver: QuorumDriver, listener_name: str) -> ActiveController | None:
    """The leader that this node knows; None if it is unknown or has no listener of that name."""
    epoch, leader_id = driver.feed.leader
    if leader_id < 0 or epoch != driver.epoch:
        return None
    for endpoint in driver.leader_endpoints:
        if endpoint.name == listener_name:
            address = BrokerAddress(leader_id, endpoint.host, endpoint.port)
            return ActiveController(epoch, address)
    return None


def controllers_of_another_cluster(driver: QuorumDriver) -> str:
    """Text for the end of a message that no active controller is known; empty if there is no
    controller of another cluster.
    """
    if not driver.strangers:
        return ""
    addresses = ", ".join(driver.strangers)
    return f"; of another cluster than the directories of this node: {addresses}"


def _open_channel(node_id: int, timers: Timers, random: Random) -> Channel:
    """Imported here: a node that is its whole cluster does not need it."""
    from kbroker.client.channel.asyncio_streams import AsyncioStreams
    from kbroker.client.channel.channel import Channel

    streams = AsyncioStreams(asyncio.get_running_loop())
    return Channel(streams, timers, random, client_id=f"controller-client-{node_id}")

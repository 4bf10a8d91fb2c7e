"""Builds a node's connection to the active controller: the channel between nodes, directed to the
leader of the metadata quorum that this node knows, and the `BrokerChannel` of its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from kbroker.broker.controller_channel import (
    BrokerChannel,
    ControllerChannel,
    LocalControllerChannel,
)
from kbroker.broker.node_to_controller import ActiveController, NodeToController
from kbroker.client.cluster_view import BrokerAddress
from kbroker.controller.service import ControllerService
from kbroker.metadata.loader import MetadataLoader
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.driver import QuorumDriver
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.quorum import BOOTSTRAP_SERVERS, VOTERS

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


def controller_channel(
    config: BrokerConfig,
    controller: ControllerService | None,
    requests: NodeToController,
    loader: MetadataLoader,
    *,
    when_applied: Callable[[], Deferred[None]],
) -> tuple[BrokerChannel, ControllerChannel | None]:
    """The channel of a broker, and the same channel again if it also answers requests of clients,
    otherwise None.

    controller: of the same node, if there is one. A node that is its whole cluster calls it in the
    process. Any other broker sends requests to the active controller over the wire, even if that is
    in the same node; only then are the requests imported.
    """
    if config.is_whole_cluster and controller is not None:
        local = LocalControllerChannel(controller, when_applied=when_applied)
        return local, local
    from kbroker.broker.remote.remote_controller_channel import RemoteControllerChannel

    remote = RemoteControllerChannel(
        config,
        requests,
        cluster_id=loader.image.cluster_id,
        metadata_offset=lambda: loader.image.offset,
    )
    return remote, None


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


def why_not_registered(error: KafkaError, config: BrokerConfig, driver: QuorumDriver) -> str:
    """The end of a line that says that a broker is not registered: what else is known of the
    reason; empty for nothing.
    """
    if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
        return (
            "; another process with this node.id is running, or was less than "
            "broker.session.timeout.ms ago"
        )
    if driver.strangers:
        addresses = ", ".join(driver.strangers)
        return f"; of another cluster than the directories of this node: {addresses}"
    epoch, leader_id = driver.feed.leader
    if error.code is not ErrorCode.REQUEST_TIMED_OUT:
        return ""
    if leader_id >= 0:
        places = ", ".join(f"{each.host}:{each.port}" for each in driver.leader_endpoints)
        return (
            f"; as far as is known here, node {leader_id} at {places or 'an unknown address'} "
            f"leads the metadata quorum in epoch {epoch}: does it run?"
        )
    if epoch > 0 and not config.is_controller:
        return (
            f"; the metadata quorum has no leader in epoch {epoch}, or one that has node.id="
            f"{config.node_id} too: do a majority of the controllers run?"
        )
    return (
        f"; no controller of {controllers_of(config)} has named a leader of the metadata quorum: "
        "do they run, and are these their controller listeners?"
    )


def controllers_of(config: BrokerConfig) -> str:
    """The setting that names the controllers, for a line of the log."""
    name = BOOTSTRAP_SERVERS if config.bootstrap_servers else VOTERS
    return f"{name}={','.join(config.get_list(name))}"


def _open_channel(node_id: int, timers: Timers, random: Random) -> Channel:
    """Imported here: a node that is its whole cluster does not need it."""
    from kbroker.client.channel.asyncio_streams import AsyncioStreams
    from kbroker.client.channel.channel import Channel

    streams = AsyncioStreams(asyncio.get_running_loop())
    return Channel(streams, timers, random, client_id=f"controller-client-{node_id}")

"""How many connections the listeners of one role may have, and how fast these are created. As in
Kafka the listeners of a broker and those of a controller are counted apart, with the same settings:
clients of the broker take no connections from the quorum.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.node.broker.quotas import connection_rates
from kbroker.server.network.limits import ConnectionLimits
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import (
    CREATION_RATE,
    MAX_CONNECTIONS,
    NetworkConfig,
    limits_by_listener,
    protected_listener,
)


class ConnectionQuotas:
    """Of the listeners of one role. overrides: `max.connections.per.ip.overrides` by address."""

    __slots__ = ("limits", "rates")

    def __init__(self, config: BrokerConfig, overrides: Mapping[str, int]) -> None:
        network = NetworkConfig.from_broker(config)
        self.limits = ConnectionLimits(
            network.max_connections,
            network.max_connections_per_ip,
            overrides,
            by_listener=limits_by_listener(config, MAX_CONNECTIONS),
            protected_listener=protected_listener(config),
        )
        self.rates = connection_rates(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply the settings to new connections; the overrides are the caller's, who looks up
        their hosts in a thread.
        """
        network, protected = NetworkConfig.from_broker(config), protected_listener(config)
        self.limits.change(
            network.max_connections,
            network.max_connections_per_ip,
            limits_by_listener(config, MAX_CONNECTIONS),
            protected_listener=protected,
        )
        self.rates.change_rates(
            config.get_int(CREATION_RATE),
            limits_by_listener(config, CREATION_RATE),
            protected_listener=protected,
        )

"""The limits on connections of the listeners of one role."""

from __future__ import annotations

import pytest

from kbroker.node.connection_quotas import ConnectionQuotas
from kbroker.settings.broker import BrokerConfig
from tests.node.test_servers import BOTH, MAP


@pytest.mark.parametrize(
    ("listeners", "protected"),
    [
        ("PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", None),
        ("PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "PLAINTEXT"),
    ],
)
def test_the_only_listener_of_a_broker_is_held_to_the_limits(
    listeners: str, protected: str | None
) -> None:
    """As in Kafka, where the listeners of a controller do not count. Also for a listener that is
    added while the broker runs.
    """
    protocols = {MAP: "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    alone = BrokerConfig.from_properties({**BOTH, **protocols})
    config = BrokerConfig.from_properties({**BOTH, **protocols, "listeners": listeners})
    for quotas in (ConnectionQuotas(alone, {}), ConnectionQuotas(config, {})):
        quotas.reconfigure(config)
        assert quotas.limits.protected_listener == protected
        assert quotas.rates._protected_listener == protected

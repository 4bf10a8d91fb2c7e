"""The typed settings of the transaction coordinator equal the table they are read from."""

from __future__ import annotations

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.transaction_coordinator import TransactionCoordinatorConfig


def test_the_defaults_are_those_of_the_table() -> None:
    broker = BrokerConfig.from_properties({})
    assert TransactionCoordinatorConfig.from_broker(broker) == TransactionCoordinatorConfig()


def test_what_is_set() -> None:
    config = TransactionCoordinatorConfig.from_broker(
        BrokerConfig.from_properties(
            {
                "transaction.max.timeout.ms": "5",
                "transaction.partition.verification.enable": "false",
            }
        )
    )
    assert config.transaction_max_timeout_ms == 5
    assert config.transaction_partition_verification_enable is False

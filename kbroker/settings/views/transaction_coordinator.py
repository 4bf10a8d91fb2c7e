"""`TransactionCoordinatorConfig`: transactions, their timeouts and the log of their states."""

from __future__ import annotations

import msgspec

from kbroker.settings.broker import BrokerConfig


class TransactionCoordinatorConfig(msgspec.Struct, frozen=True):
    """The settings of one broker."""

    transaction_state_log_num_partitions: int = 50
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_partition_verification_enable: bool = True

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> TransactionCoordinatorConfig:
        """The transaction coordinator's part of a broker's settings."""
        names = {
            name: name.replace("_", ".")
            for name, kind in cls.__annotations__.items()
            if kind == "int"
        }
        verify = config.get_bool("transaction.partition.verification.enable")
        return cls(
            **{name: config.get_int(key) for name, key in names.items()},
            transaction_partition_verification_enable=verify,
        )

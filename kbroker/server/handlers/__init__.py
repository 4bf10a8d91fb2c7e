"""One module per API family. Each ends with `HANDLERS`; the list of modules here is what the broker
serves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from kbroker.server.api_policy import Forward, ListenerType

if TYPE_CHECKING:
    from kbroker.server.api_handler import ApiHandler
    from kbroker.server.services import ControllerServices, Services

MODULES: Final = (
    "cluster.api_versions",
    "topics.metadata",
    "topics.topic_partitions",
    "cluster.cluster",
    "topics.topics",
    "topics.leaders_and_replicas",
    "configs.configs",
    "configs.features",
    "configs.alter_configs",
    "configs.client_quotas",
    "configs.scram_credentials",
    "configs.acls",
    "records.produce",
    "records.fetch",
    "records.list_offsets",
    "records.delete_records",
    "records.leader_epochs",
    "topics.log_dirs",
    "transactions.producers",
    "transactions.init_producer_id",
    "groups.find_coordinator",
    "transactions.transactions",
    "transactions.transaction_tools",
    "groups.groups",
    "groups.consumer_groups",
    "groups.streams_groups",
    "groups.delete_groups",
    "groups.share_groups",
    "groups.share_fetch",
    "groups.share_state",
    "groups.offsets",
)


CONTROLLER_MODULES: Final = (
    "cluster.api_versions",
    "topics.topics",
    "topics.leaders_and_replicas",
    "configs.configs",
    "configs.features",
    "configs.alter_configs",
    "configs.client_quotas",
    "configs.scram_credentials",
    "configs.acls",
    "cluster.controllers",
    "cluster.brokers",
    "cluster.quorum",
)
"""Modules with APIs that controller listeners serve; `envelope` makes one more, which stands on a
dispatcher of these.
"""


def all_handlers() -> list[ApiHandler[Services]]:
    """Every API of broker listeners. Imports the modules, which import the cores they call."""
    handlers: list[ApiHandler[Services]] = []
    for name in MODULES:
        handlers.extend(import_module(f"{__name__}.{name}").HANDLERS)
    return handlers


def telemetry_handlers() -> list[ApiHandler[Services]]:
    """The APIs that only a broker with a receiver of client metrics serves."""
    return list(import_module(f"{__name__}.configs.telemetry").HANDLERS)


def controller_handlers() -> list[ApiHandler[ControllerServices]]:
    """Every API of controller listeners."""
    handlers: list[ApiHandler[ControllerServices]] = []
    for name in CONTROLLER_MODULES:
        for handler in import_module(f"{__name__}.{name}").HANDLERS:
            if ListenerType.CONTROLLER in handler.policy.listeners:
                handlers.append(handler)
    return handlers


def forwarded_handlers() -> list[ApiHandler[ControllerServices]]:
    """The APIs of broker listeners that the active controller answers."""
    return [
        handler
        for handler in controller_handlers()
        if handler.policy.forward is Forward.TO_CONTROLLER
        and ListenerType.BROKER in handler.policy.listeners
    ]

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
    "api_versions",
    "metadata",
    "topic_partitions",
    "cluster",
    "topics",
    "leaders_and_replicas",
    "configs",
    "features",
    "alter_configs",
    "client_quotas",
    "scram_credentials",
    "acls",
    "produce",
    "fetch",
    "list_offsets",
    "delete_records",
    "leader_epochs",
    "log_dirs",
    "producers",
    "init_producer_id",
    "find_coordinator",
    "transactions",
    "transaction_tools",
    "groups",
    "consumer_groups",
    "streams_groups",
    "delete_groups",
    "share_groups",
    "share_fetch",
    "share_state",
    "offsets",
)


CONTROLLER_MODULES: Final = (
    "api_versions",
    "topics",
    "leaders_and_replicas",
    "configs",
    "features",
    "alter_configs",
    "client_quotas",
    "scram_credentials",
    "acls",
    "controllers",
    "brokers",
    "quorum",
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
    return list(import_module(f"{__name__}.telemetry").HANDLERS)


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

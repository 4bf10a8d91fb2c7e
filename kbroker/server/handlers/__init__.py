"""One module per API family. Each ends with `HANDLERS`; the list of modules here is what the broker
serves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbroker.server.api_handler import ApiHandler

MODULES: Final = (
    "api_versions",
    "metadata",
    "topic_partitions",
    "cluster",
    "topics",
    "configs",
    "features",
    "alter_configs",
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


def all_handlers() -> list[ApiHandler]:
    """Every registered API. Imports the modules, which import the cores they call."""
    handlers: list[ApiHandler] = []
    for name in MODULES:
        handlers.extend(import_module(f"{__name__}.{name}").HANDLERS)
    return handlers

"""One module per API family. Each ends with `HANDLERS`; the tables of modules and policies here are
what the broker serves. A module is imported when the first request for one of its APIs arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kbroker.server.api_handler import LateHandler
from kbroker.server.api_policy import Forward, ListenerType, Policies
from kbroker.server.policies import administration, data, groups

if TYPE_CHECKING:
    from kbroker.server.api_handler import ApiHandler
    from kbroker.server.services import ControllerServices, Services

MODULES: Final[Mapping[str, Policies]] = {
    "cluster.api_versions": data.API_VERSIONS,
    "topics.metadata": data.METADATA,
    "topics.topic_partitions": data.TOPIC_PARTITIONS,
    "cluster.cluster": data.CLUSTER,
    "topics.topics": administration.TOPICS,
    "topics.leaders_and_replicas": administration.LEADERS_AND_REPLICAS,
    "configs.configs": administration.CONFIGS,
    "configs.features": administration.FEATURES,
    "configs.alter_configs": administration.ALTER_CONFIGS,
    "configs.client_quotas": administration.CLIENT_QUOTAS,
    "configs.scram_credentials": administration.SCRAM_CREDENTIALS,
    "configs.acls": administration.ACLS,
    "records.produce": data.PRODUCE,
    "records.fetch": data.FETCH,
    "records.list_offsets": data.LIST_OFFSETS,
    "records.delete_records": data.DELETE_RECORDS,
    "records.leader_epochs": data.LEADER_EPOCHS,
    "topics.log_dirs": data.LOG_DIRS,
    "transactions.producers": data.PRODUCERS,
    "transactions.init_producer_id": groups.INIT_PRODUCER_ID,
    "groups.find_coordinator": groups.FIND_COORDINATOR,
    "transactions.transactions": groups.TRANSACTIONS,
    "transactions.transaction_tools": groups.TRANSACTION_TOOLS,
    "groups.groups": groups.GROUPS,
    "groups.consumer_groups": groups.CONSUMER_GROUPS,
    "groups.streams_groups": groups.STREAMS_GROUPS,
    "groups.delete_groups": groups.DELETE_GROUPS,
    "groups.share_groups": groups.SHARE_GROUPS,
    "groups.share_fetch": groups.SHARE_FETCH,
    "groups.share_state": groups.SHARE_STATE,
    "groups.offsets": groups.OFFSETS,
}

CONTROLLER_MODULES: Final[Mapping[str, Policies]] = {
    "cluster.api_versions": data.API_VERSIONS,
    "topics.topics": administration.TOPICS,
    "topics.leaders_and_replicas": administration.LEADERS_AND_REPLICAS,
    "configs.configs": administration.CONFIGS,
    "configs.features": administration.FEATURES,
    "configs.alter_configs": administration.ALTER_CONFIGS,
    "configs.client_quotas": administration.CLIENT_QUOTAS,
    "configs.scram_credentials": administration.SCRAM_CREDENTIALS,
    "configs.acls": administration.ACLS,
    "cluster.controllers": administration.CONTROLLERS,
    "cluster.brokers": administration.BROKERS,
    "cluster.quorum": administration.QUORUM,
}
"""Modules with APIs that controller listeners serve; `envelope` makes one more, which stands on a
dispatcher of these.
"""


def broker_apis() -> list[LateHandler[Services]]:
    """Every API of broker listeners."""
    return _late(MODULES)


def telemetry_apis() -> list[LateHandler[Services]]:
    """The APIs that only a broker with a receiver of client metrics serves."""
    return _late({"configs.telemetry": data.TELEMETRY})


def controller_apis() -> list[LateHandler[ControllerServices]]:
    """Every API of controller listeners."""
    late: list[LateHandler[ControllerServices]] = _late(CONTROLLER_MODULES)
    return [each for each in late if ListenerType.CONTROLLER in each.policy.listeners]


def forwarded_apis() -> list[LateHandler[ControllerServices]]:
    """The APIs of broker listeners that the active controller answers."""
    return [
        each
        for each in controller_apis()
        if each.policy.forward is Forward.TO_CONTROLLER
        and ListenerType.BROKER in each.policy.listeners
    ]


def _late(modules: Mapping[str, Policies]) -> list[LateHandler[Any]]:
    return [
        LateHandler(f"{__name__}.{name}", api_key, policy)
        for name, policies in modules.items()
        for api_key, policy in policies.items()
    ]


# Imported at once: for what looks at every handler


def all_handlers() -> list[ApiHandler[Services]]:
    """Of `broker_apis`."""
    return _loaded(broker_apis())


def telemetry_handlers() -> list[ApiHandler[Services]]:
    """Of `telemetry_apis`."""
    return _loaded(telemetry_apis())


def controller_handlers() -> list[ApiHandler[ControllerServices]]:
    """Of `controller_apis`."""
    return _loaded(controller_apis())


def _loaded(apis: Iterable[LateHandler[Any]]) -> list[ApiHandler[Any]]:
    return [each.load() for each in apis]

"""Connects the quotas of a node with its metadata, its dispatchers and its connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from kbroker.metadata.image import MetadataImage, QuotaEntity
from kbroker.metadata.loader import MetadataLoader
from kbroker.replication.rates import QuotaWindow
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.connection_shared import ConnectionShared
from kbroker.server.quotas.client_quotas import ClientQuotas
from kbroker.server.quotas.connection_rates import ConnectionRates
from kbroker.server.services import NodeServices
from kbroker.server.throttling import ThrottlingDispatcher
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.network import CREATION_RATE, limits_by_listener, protected_listener

S = TypeVar("S", bound=NodeServices)


def client_quotas(config: BrokerConfig) -> ClientQuotas:
    """The client quotas of one type of listener; empty at first."""
    mutations = _window(
        config, "controller.quota.window.num", "controller.quota.window.size.seconds"
    )
    return ClientQuotas(_rate_window(config), mutations)


def connection_rates(config: BrokerConfig) -> ConnectionRates:
    """The limits on the rate of new connections to the listeners of one role of this node."""
    return ConnectionRates(
        _rate_window(config),
        broker_rate=config.get_int(CREATION_RATE),
        protected_listener=protected_listener(config),
        by_listener=limits_by_listener(config, CREATION_RATE),
        backlog=config.get_int("socket.listen.backlog.size"),
    )


def _rate_window(config: BrokerConfig) -> QuotaWindow:
    return _window(config, "quota.window.num", "quota.window.size.seconds")


def _window(config: BrokerConfig, samples: str, size_seconds: str) -> QuotaWindow:
    return QuotaWindow(config.get_int(samples), config.get_int(size_seconds) * 1000)


def enforce_client_quotas(
    services: NodeServices,
    loader: MetadataLoader,
    dispatcher: Dispatcher[S],
    shared: ConnectionShared,
) -> None:
    """Enforce the quotas of the metadata on these connections. Without quotas the dispatcher is
    used unchanged.
    """
    quotas = services.quotas
    throttling = ThrottlingDispatcher(dispatcher, quotas, services.timers)

    def switch() -> None:
        dispatcher.limit_responses(to_quotas=quotas.is_set)
        shared.dispatcher = throttling if quotas.is_set else dispatcher

    def follow(old: MetadataImage, new: MetadataImage) -> None:
        changed = _changed_quotas(old, new)
        if changed:
            quotas.change(changed)

    quotas.on_change = switch
    loader.on_image(follow)


def follow_connection_rates(rates: Sequence[ConnectionRates], loader: MetadataLoader) -> None:
    """Apply the connection quotas of the metadata to addresses."""

    def follow(old: MetadataImage, new: MetadataImage) -> None:
        changed = _changed_quotas(old, new)
        if changed:
            for each in rates:
                each.change(changed)

    loader.on_image(follow)


def _changed_quotas(
    old: MetadataImage, new: MetadataImage
) -> dict[QuotaEntity, Mapping[str, float]]:
    """The quotas of each entity that have changed; an empty mapping for an entity without quotas
    now.
    """
    changed = new.client_quotas.changed_keys(old.client_quotas)
    return {entity: new.client_quotas.get(entity, {}) for entity in changed}

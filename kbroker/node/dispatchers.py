"""The handler tables of a node's listeners, and the forwarding of a broker's requests to the active
controller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kbroker.protocol.apis import APIS
from kbroker.server.api_handler import ApiHandler, RegisteredApi
from kbroker.server.api_policy import ListenerType
from kbroker.server.dispatch import Dispatcher
from kbroker.server.forwarding import Forwarder, LocalForwarder, RequestForwarder
from kbroker.server.handlers import (
    broker_apis,
    controller_apis,
    forwarded_apis,
    telemetry_apis,
)
from kbroker.server.request_errors import RequestErrors
from kbroker.server.services import ControllerServices, Services

if TYPE_CHECKING:
    from kbroker.broker.node_to_controller import NodeToController


class ControllerDispatchers:
    """The dispatchers of one controller. services: called once, with the first table. errors: those
    of `forwarded`.
    """

    def __init__(self, services: Callable[[], ControllerServices]) -> None:
        self._make_services = services
        self.errors = RequestErrors()

    @cached_property
    def services(self) -> ControllerServices:
        """The services for their handlers."""
        return self._make_services()

    @cached_property
    def forwarded(self) -> Dispatcher[ControllerServices]:
        """The dispatcher of requests that brokers forward."""
        handlers = [each for each in controller_apis() if APIS[each.api_key].forwardable]
        return Dispatcher(
            handlers, self.services, listener=ListenerType.CONTROLLER, errors=self.errors
        )

    def of_listeners(self) -> Dispatcher[ControllerServices]:
        """The dispatcher of connections to controller listeners."""
        from kbroker.server.handlers.cluster.envelope import envelope_handler

        return Dispatcher(
            [*controller_apis(), envelope_handler(self.forwarded)],
            self.services,
            listener=ListenerType.CONTROLLER,
        )


def broker_dispatcher(
    services: Services,
    controllers: ControllerDispatchers | None,
    to_controller: NodeToController,
    *,
    handlers: Sequence[ApiHandler[Services]] | None = None,
) -> Dispatcher[Services]:
    """The dispatcher of connections to a broker. controllers: those of a node that is its whole
    cluster; any other broker forwards to the active controller over the wire. handlers: replaces
    the default handlers.
    """
    own: Sequence[RegisteredApi[Services]] = (
        (broker_apis() + ([] if services.telemetry is None else telemetry_apis()))
        if handlers is None
        else handlers
    )
    if controllers is None:
        errors = RequestErrors()
        forwarder: Forwarder = RequestForwarder(forwarded_apis(), services, to_controller, errors)
        return Dispatcher(own, services, forwarder=forwarder, errors=errors)
    if handlers is not None:
        return Dispatcher(own, services)
    here = {handler.api_key for handler in own}
    forwarder = LocalForwarder(
        [handler for handler in forwarded_apis() if handler.api_key not in here],
        lambda: controllers.forwarded,
        listener_name=next(iter(services.config.controller_listener_names), ""),
    )
    return Dispatcher(own, services, forwarder=forwarder)

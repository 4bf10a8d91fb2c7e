"""A controller's side of ControllerRegistration (Kafka's ControllerRegistrationManager): sends its
registration to the active controller until the metadata log has it.

The decision is in `controllers`. A registration that another process makes under this node's id is
answered with a new one, after a pause that doubles: two running processes with one node id would
otherwise write registrations as fast as they are committed, as two controllers of Kafka do. The
registration waits for a metadata.version that has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from kbroker.metadata.features import REGISTRATION_LEVEL, SUPPORTED_FEATURES
from kbroker.metadata.image import ControllerRegistration, Endpoint, MetadataImage
from kbroker.model import Uuid
from kbroker.ports import Deferred, Random, TimerHandle, Timers
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.cluster import ControllerRegistrationRequest

logger = logging.getLogger(__name__)

BACKOFF_MS: Final = 100
BACKOFF_MAX_MS: Final = 120_000
JITTER: Final = 0.02


def registration_request(
    controller_id: int, *, incarnation_id: Uuid, endpoints: Iterable[Endpoint]
) -> ControllerRegistrationRequest:
    """The registration of a controller of this release."""
    return ControllerRegistrationRequest(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        listeners=[
            ControllerRegistrationRequest.Listener(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in endpoints
        ],
        features=[
            ControllerRegistrationRequest.Feature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ],
    )


class ControllerRegistrar:
    """Of one incarnation. send: to the active controller, wherever that is; may raise KafkaError.
    Loop thread only.
    """

    __slots__ = (
        "_failures",
        "_image",
        "_is_open",
        "_is_pending",
        "_random",
        "_request",
        "_send",
        "_takeovers",
        "_timer",
        "_timers",
        "_was_registered",
    )

    def __init__(
        self,
        request: ControllerRegistrationRequest,
        send: Callable[[ControllerRegistrationRequest], Deferred[None]],
        timers: Timers,
        random: Random,
    ) -> None:
        self._request = request
        self._send = send
        self._timers = timers
        self._random = random
        self._image = MetadataImage()
        self._timer: TimerHandle | None = None
        self._failures = 0
        self._takeovers = 0
        self._was_registered = False
        self._is_pending = False
        self._is_open = False

    def start(self) -> None:
        """The active controller may be reached now: try at once, whatever failed before."""
        self._is_open = True
        self._stop_timer()
        self._register()

    def close(self) -> None:
        """Send nothing more."""
        self._is_open = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """A listener of the metadata loader."""
        self._image = new
        controller_id = self._request.controller_id
        is_new = new.controllers.get(controller_id) is not old.controllers.get(controller_id)
        was_registered, self._was_registered = self._was_registered, self.is_registered
        if was_registered and not self._was_registered:
            self._taken_over()
        elif self._timer is None and (is_new or new.metadata_version != old.metadata_version):
            self._register()

    @property
    def is_registered(self) -> bool:
        """Whether the metadata log has the registration of this incarnation."""
        registration = self._image.controllers.get(self._request.controller_id)
        return (
            registration is not None and registration.incarnation_id == self._request.incarnation_id
        )

    def _register(self) -> None:
        if not self._is_open or self._is_pending or self.is_registered:
            return
        if self._image.metadata_version < REGISTRATION_LEVEL:
            return
        self._is_pending = True
        try:
            answer = self._send(self._request)
        except KafkaError as error:
            self._failed(error)
            return
        answer.on_done(self._answered, self._failed)

    def _taken_over(self) -> None:
        """The metadata log had the registration of this process and now has that of another one. A
        stale one, of an earlier process, is overruled at once; it has no successor.
        """
        if not self._is_open:
            return
        delay_ms = 0
        if self._takeovers:
            delay_ms = min(BACKOFF_MAX_MS, BACKOFF_MS << min(self._takeovers - 1, 11))
        self._takeovers += 1
        controller_id = self._request.controller_id
        other = self._image.controllers.get(controller_id)
        logger.warning(
            "Node %d: another process has registered as controller %d, at %s: no two processes may "
            "have the same node.id; this one registers again in %d ms",
            controller_id,
            controller_id,
            "an unknown address" if other is None else _addresses(other),
            delay_ms,
        )
        self._stop_timer()
        if delay_ms:
            self._timer = self._timers.call_later(delay_ms, self._again)
        else:
            self._register()

    def _answered(self, _: None) -> None:
        self._is_pending = False
        self._failures = 0

    def _failed(self, error: KafkaError) -> None:
        self._is_pending = False
        if not self._is_open:
            return
        delay_ms = min(BACKOFF_MAX_MS, BACKOFF_MS << min(self._failures, 11))
        delay_ms = int(delay_ms * self._random.uniform(1 - JITTER, 1 + JITTER))
        self._failures += 1
        logger.info(
            "Node %d: the controller is not registered yet (%s), next attempt in %d ms",
            self._request.controller_id,
            error,
            delay_ms,
        )
        self._timer = self._timers.call_later(delay_ms, self._again)

    def _again(self) -> None:
        self._timer = None
        self._register()


def _addresses(controller: ControllerRegistration) -> str:
    endpoints = controller.endpoints.values()
    return ", ".join(f"{each.host}:{each.port}" for each in endpoints) or "no listener"

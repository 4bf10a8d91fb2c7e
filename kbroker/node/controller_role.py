"""Builds the controller role of a node (process.roles) on its metadata log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from kbroker.broker.controller_channel import LocalControllerChannel
from kbroker.broker.metadata_cache import MetadataCache
from kbroker.broker.node_requests import LocalNodeRequests
from kbroker.broker.node_to_controller import NodeToController
from kbroker.controller.controller import Controller
from kbroker.controller.registration import ControllerRegistrar, registration_request
from kbroker.controller.result import ControllerResult
from kbroker.controller.service import ControllerService
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.records import decode_record
from kbroker.model import random_uuid
from kbroker.node.broker.controller_connection import controllers_of
from kbroker.node.broker.dynamic_config import DynamicConfig
from kbroker.node.broker.quotas import client_quotas
from kbroker.node.leader_watch import LeaderWatch
from kbroker.node.loop.futures import as_future
from kbroker.node.metadata_log import MetadataLog
from kbroker.node.policies import load_policies
from kbroker.ports import Deferred, SetLogLevel, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kbroker.quorum.formatting.format import MetaProperties, load_bootstrap_records, own_endpoints
from kbroker.replication.time_slices import FairSlices, TimeSlices
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.services import ControllerServices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.sections.quorum import AUTO_JOIN, VOTERS, QuorumConfig

logger = logging.getLogger(__name__)

REGISTRATION: Final = "controller registration"
REGISTRATION_RETRY_MS: Final = 5_000
"""How long one registration attempt is retried, as in Kafka; the registrar then makes another."""


class ControllerRole:
    """The controller of one node. service: handles requests while this node leads the quorum.
    endpoints: the advertised controller listeners with their real ports. requests: the channel to
    the active controller.
    """

    def __init__(
        self,
        config: BrokerConfig,
        properties: MetaProperties,
        timers: Timers,
        log: MetadataLog,
        random: Random,
        *,
        clock: Callable[[], float] = time.monotonic,
        endpoints: Mapping[str, Endpoint],
        requests: NodeToController,
    ) -> None:
        self._config = config
        self._properties = properties
        self._timers = timers
        self._log = log
        self._clock = clock
        self.service = ControllerService(
            Controller(
                config,
                random=random,
                node_id=properties.node_id,
                policies=load_policies(config),
            ),
            log.driver,
            slices=TimeSlices(timers, clock=clock),
            committed_image=lambda: log.loader.image,
            timers=timers,
            config=config,
        )
        self._node_requests = LocalNodeRequests(self.service)
        self._registrar = ControllerRegistrar(
            registration_request(
                properties.node_id,
                incarnation_id=random_uuid(random),
                endpoints=(endpoints or _unbound_endpoints(config)).values(),
            ),
            self._send_registration,
            timers,
            random,
        )
        self._watch = LeaderWatch(
            lambda: log.driver.status,
            timers,
            node_id=properties.node_id,
            warn_after_ms=_without_leader_ms(config),
            controllers=controllers_of(config),
        )
        if QuorumConfig.from_broker(config).auto_join:
            log.caught_up.on_done(self._check_auto_join, lambda _: None)
        self._requests = requests
        self._bootstrapped: Deferred[None] = Deferred()
        log.on_commit(self.service.committed)
        log.on_leadership_lost(self.service.resign)
        log.loader.on_image(self._registrar.on_image)

    def services(
        self,
        memory: MemoryPool,
        dynamic: DynamicConfig,
        set_log_level: SetLogLevel | None = None,
    ) -> ControllerServices:
        """The services for handlers of the controller listeners. A response only waits for the
        commit of its records, not for a broker. dynamic: the effective settings.
        """
        service, loader, driver = self.service, self._log.loader, self._log.driver
        cache = MetadataCache(self._properties.cluster_id, lambda: driver.kraft_version)

        def show(old: MetadataImage, new: MetadataImage) -> None:
            cache.image = new

        loader.on_image(show)
        cache.image = loader.image
        channel = LocalControllerChannel(service, when_applied=lambda: Deferred.of(None))
        services = ControllerServices(
            config=dynamic.current,
            node_id=self._properties.node_id,
            cluster_id=self._properties.cluster_id,
            timers=self._timers,
            local_controller=channel,
            channel=channel,
            metadata=cache,
            slices=FairSlices(self._timers, clock=self._clock),
            memory=memory,
            quotas=client_quotas(self._config),
            set_log_level=set_log_level,
            node_requests=self._node_requests,
            quorum=driver,
            leader_id=lambda: driver.feed.leader[1],
        )
        dynamic.follow(services.reconfigure)
        return services

    def _send_registration(self, request: ControllerRegistrationRequest) -> Deferred[None]:
        """Send to the active controller: this one, or another over the wire."""
        if self.service.is_active:
            return self._node_requests.register_controller(request)
        answer = self._requests.send(
            request,
            ControllerRegistrationResponse,
            purpose=REGISTRATION,
            retry_ms=REGISTRATION_RETRY_MS,
        )
        return answer.then(_check_registered)

    async def start(self) -> None:
        """Join the quorum, whose log has been started: this controller is active in each epoch that
        this node leads, and otherwise on standby. Returns after the registration if this is the
        only voter; with several voters at once.
        """
        self._log.on_leadership_gained(self._claim)
        self._registrar.start()
        if not self._config.forms_quorum_alone:
            self._watch.start()
        if self._log.driver.is_only_voter:
            await as_future(self._bootstrapped)
            await as_future(self.service.submit(lambda controller, _: ControllerResult([], None)))

    def _claim(self, epoch: int) -> None:
        """Become the active controller; append the bootstrap records of a new cluster."""
        service, loader = self.service, self._log.loader
        service.activate(open_transaction=loader.in_transaction)
        self._bootstrapped = Deferred.of(None)
        if not loader.image.features:
            records = [decode_record(each) for each in load_bootstrap_records(self._config)]
            self._bootstrapped = service.submit(lambda controller, _: controller.bootstrap(records))
        self._bootstrapped.on_done(lambda _: self._claimed(epoch), self._not_bootstrapped)

    def _claimed(self, epoch: int) -> None:
        loader = self._log.loader
        logger.info(
            "Node %d: active controller of cluster %s at epoch %d, %d topics, metadata offset %d",
            self._properties.node_id,
            self._properties.cluster_id,
            epoch,
            len(loader.image.topics),
            loader.image.offset,
        )
        self._registrar.start()

    def _not_bootstrapped(self, error: KafkaError) -> None:
        """If this leader did not commit the bootstrap records, the next leader will."""
        logger.warning(
            "Node %d: bootstrap records were not written: %s", self._properties.node_id, error
        )

    def _check_auto_join(self, _: None) -> None:
        driver = self._log.driver
        if driver.kraft_version == 0:
            logger.warning(
                "Node %d: %s has no effect: at kraft.version 0 the voters are those of %s on every"
                " controller",
                self._properties.node_id,
                AUTO_JOIN,
                VOTERS,
            )

    def close(self) -> None:
        """Accept no more requests; those in progress are answered until the log is closed."""
        self._watch.close()
        self._registrar.close()
        self.service.close()

    def kill(self) -> None:
        """Stop sending and deciding, as after a crash."""
        self._watch.close()
        self._registrar.close()
        self.service.resign()

    def closed(self) -> None:
        """The log is closed: fail uncommitted requests."""
        self.service.resign()


def _without_leader_ms(config: BrokerConfig) -> int:
    """Twice as long as an election takes: a follower waits for the fetch timeout and, the next one
    standing, for up to two election timeouts.
    """
    quorum = QuorumConfig.from_broker(config)
    return 2 * (quorum.fetch_timeout_ms + 2 * quorum.election_timeout_ms)


def _check_registered(response: ControllerRegistrationResponse) -> None:
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.error_message or "")


def _unbound_endpoints(config: BrokerConfig) -> dict[str, Endpoint]:
    """The endpoint of a single node without a controller listener; Kafka's readers expect at least
    one.
    """
    return {each.name: Endpoint(each.name, each.host, each.port) for each in own_endpoints(config)}

"""Builds the controller role of a node (process.roles) on its metadata log."""

from __future__ import annotations

import logging
from random import Random

from kbroker.controller.controller import Controller
from kbroker.controller.service import ControllerService
from kbroker.metadata.image import Endpoint
from kbroker.metadata.records import decode_record
from kbroker.model import random_uuid
from kbroker.node.futures import as_future
from kbroker.node.metadata_log import MetadataLog
from kbroker.ports import Timers
from kbroker.quorum.format import MetaProperties, load_bootstrap_records, own_endpoints
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.listeners import SECURITY_PROTOCOLS

logger = logging.getLogger(__name__)


class ControllerRole:
    """The controller of one node. service: takes requests while it leads the quorum."""

    def __init__(
        self,
        config: BrokerConfig,
        properties: MetaProperties,
        timers: Timers,
        log: MetadataLog,
        random: Random,
    ) -> None:
        self._config = config
        self._properties = properties
        self._log = log
        self._random = random
        self.service = ControllerService(
            Controller(config, random=random, node_id=properties.node_id),
            log.driver,
            slices=TimeSlices(timers),
            committed_image=lambda: log.loader.image,
            now_ms=timers.now_ms,
        )
        log.on_commit(self.service.committed)
        log.on_leadership_lost(self.service.resign)

    async def start(self) -> None:
        """Become the active controller of the log, which has been started; write the bootstrap
        records of a new cluster. Returns when this controller is registered.
        """
        service, loader = self.service, self._log.loader
        service.activate(open_transaction=loader.in_transaction)
        if not loader.image.features:
            bootstrap = [decode_record(r) for r in load_bootstrap_records(self._config)]
            await as_future(service.submit(lambda controller, _: controller.bootstrap(bootstrap)))
        incarnation_id = random_uuid(self._random)
        endpoints = controller_endpoints(self._config)
        await as_future(
            service.submit(
                lambda controller, _: controller.register_controller(incarnation_id, endpoints)
            )
        )
        logger.info(
            "Node %d: active controller of cluster %s at epoch %d, %d topics, metadata offset %d",
            self._properties.node_id,
            self._properties.cluster_id,
            self._log.driver.epoch,
            len(loader.image.topics),
            loader.image.offset,
        )

    def close(self) -> None:
        """Accept no more requests; those under way are answered until the log is closed."""
        self.service.close()

    def closed(self) -> None:
        """The log is closed: fail what was not committed."""
        self.service.resign()


def controller_endpoints(config: BrokerConfig) -> dict[str, Endpoint]:
    """Where this controller is reached; Kafka's readers expect at least one endpoint."""
    protocols = {each.name: each.security_protocol for each in config.controller_listeners}
    return {
        each.name: Endpoint(
            each.name,
            each.host,
            each.port,
            SECURITY_PROTOCOLS.index(protocols.get(each.name, "PLAINTEXT")),
        )
        for each in own_endpoints(config)
    }

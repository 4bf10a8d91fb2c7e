"""The controller at work: decides on the proposed image, appends to the metadata log, answers once
it is committed.

An operation is decided on the image that already contains every earlier proposal, committed or not,
so the same topic is never created twice. Its records are replayed into the next proposed image at
once; that image is published, and the response let out, when the quorum says the records are on
disk. What is read from the log (a restart, later another leader) goes through the same replay. The
decisions are in `kbroker/metadata`, the log is in `kbroker/quorum`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from kbroker.controller.configs import AlteredResource, Outcome
from kbroker.controller.controller import Controller, ControllerResult
from kbroker.controller.directories import Assignment
from kbroker.controller.producer_ids import ProducerIdBlock
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.features import KRAFT_VERSION
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.records import decode_record, encode_record
from kbroker.metadata.snapshot import image_records
from kbroker.model import InvariantError, StartupError, Uuid, random_uuid
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.quorum.driver import QuorumDriver
from kbroker.quorum.format import MetaProperties, load_bootstrap_records, own_endpoints
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.listeners import SECURITY_PROTOCOLS

logger = logging.getLogger(__name__)

R = TypeVar("R")

SNAPSHOT_CHUNK_RECORDS: Final = 500
"""Records encoded between two turns of the loop while a snapshot is made (about 2 ms)."""

ImageListener = Callable[[MetadataImage, MetadataImage], None]


def _at_once(then: Callable[[], None]) -> None:
    then()


@dataclass(slots=True)
class _Proposal:
    """What waits for a commit. end_offset: of its last record, inclusive; image: None for one
    without records.
    """

    end_offset: int
    image: MetadataImage | None
    answer: Callable[[], None]


class ControllerRuntime:
    """The active controller of a single-voter quorum and the broker's view of the metadata. Loop
    thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        properties: MetaProperties,
        timers: Timers,
        random: Random,
        driver: QuorumDriver | None = None,
    ) -> None:
        self._config = config
        self._properties = properties
        self._timers = timers
        self._random = random
        self._driver = driver or QuorumDriver.from_config(
            config, properties=properties, timers=timers
        )
        self._controller = Controller(config, random=random, node_id=properties.node_id)
        self._image = MetadataImage(cluster_id=properties.cluster_id)
        self._applied_image = self._image
        self._loading = MetadataDelta(self._image)
        self._listeners: list[ImageListener] = []
        self.when_applied: Callable[[Callable[[], None]], None] = _at_once
        """Calls back once this broker has done what the published images mean for it: answers wait
        for that, so a topic that was made is hosted."""
        self._proposals: deque[_Proposal] = deque()
        self._active = False
        self._loaded = False
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
        self._snapshot_offset = -1
        self._snapshot_due_ms: int | None = None
        self._driver.on_commit(self._committed)
        self._driver.on_snapshot(self._snapshot_read)

    # Life.

    async def start(self) -> None:
        """Replay what is on disk, win the election, write the bootstrap records of a new cluster.

        Returns when the image is that of a working controller. Raises StartupError for a metadata
        log that cannot be read.
        """
        try:
            await self._driver.start()
            self._finish_loading()
        except InvariantError as error:
            raise StartupError(
                f"{self._config.metadata_log_dir}: the metadata log cannot be replayed: {error}"
            ) from error
        self._active = True
        if not self._image.features:
            bootstrap = [decode_record(r) for r in load_bootstrap_records(self._config)]
            self.submit(lambda controller, now_ms: controller.bootstrap(bootstrap))
        incarnation_id = random_uuid(self._random)
        endpoints = controller_endpoints(self._config)
        registered = self.submit(
            lambda controller, now_ms: controller.register_controller(incarnation_id, endpoints)
        )
        await as_future(registered)
        logger.info(
            "Node %d: active controller of cluster %s at epoch %d, %d topics, metadata offset %d",
            self.node_id,
            self.cluster_id,
            self._driver.epoch,
            len(self._image.topics),
            self._image.offset,
        )

    async def stop(self) -> None:
        """Commit what was proposed, then close the metadata log. Nothing may be submitted
        afterwards.
        """
        self._active = False
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await self._driver.stop()

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Called once if the metadata log cannot be written: the node must stop, as Kafka's
        does.
        """
        self._driver.on_fatal(callback)

    # What is known.

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata for which this broker has done all that they mean
        (`when_applied`). Hold it in a local for the length of one call.

        Clients are told this: whoever heard of a leader that is not there yet would send records
        too early.
        """
        return self._applied_image

    @property
    def committed_image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self._image

    @property
    def node_id(self) -> int:
        return self._properties.node_id

    @property
    def cluster_id(self) -> str:
        return self._properties.cluster_id

    @property
    def epoch(self) -> int:
        """The quorum's epoch."""
        return self._driver.epoch

    @property
    def broker_epoch(self) -> int:
        """This node's epoch as a broker; -1 before `register_broker` is done."""
        registration = self._image.brokers.get(self.node_id)
        return -1 if registration is None else registration.epoch

    def finalized_features(self) -> Mapping[str, int]:
        """Finalized levels for ApiVersions, kraft.version included; they hold as of
        `image.offset`.
        """
        features = dict(self._image.features)
        if self._driver.kraft_version > 0:
            features[KRAFT_VERSION] = self._driver.kraft_version
        return features

    def on_image(self, callback: ImageListener) -> None:
        """Call back with (old, new) after each commit, in order of registration, before its
        response goes out (see also `when_applied`).

        Called at once with (empty image, image) if there is one already, so nothing is missed.
        """
        self._listeners.append(callback)
        if self._image.offset >= 0:
            callback(MetadataImage(cluster_id=self.cluster_id), self._image)

    # Operations.

    def submit(self, operation: Callable[[Controller, int], ControllerResult[R]]) -> Deferred[R]:
        """Decide now, append, and resolve with the response once the records are committed and
        published.

        An operation without records resolves after the proposals before it, so its answer never
        runs ahead of the image. Raises KafkaError if the operation does, or NOT_CONTROLLER before
        start and after stop.
        """
        if not self._active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The active controller is not available.")
        self._controller.next_offset = self._driver.next_offset
        result = operation(self._controller, self._timers.now_ms())
        deferred: Deferred[R] = Deferred()

        def answer() -> None:
            deferred.resolve(result.response)

        if not result.records:
            if self._proposals:
                self._proposals.append(_Proposal(self._proposals[-1].end_offset, None, answer))
            else:
                self.when_applied(answer)
            return deferred
        self._propose(result, answer)
        return deferred

    def _propose(self, result: ControllerResult[Any], answer: Callable[[], None]) -> None:
        controller = self._controller
        records = result.records
        version = controller.image.metadata_version
        encoded = [encode_record(record, version) for record in records]
        end_offset = self._driver.next_offset + len(encoded) - 1
        image = controller.replay(records, offset=end_offset, epoch=self._driver.epoch)
        self._proposals.append(_Proposal(end_offset, image, answer))
        self._driver.append(encoded, atomic=result.atomic)

    def create_topics(
        self, request: CreateTopicsRequest, *, describable: frozenset[str] | None = None
    ) -> Deferred[CreateTopicsResponse]:
        """CreateTopics; see `kbroker.controller.topics`."""
        return self.submit(
            lambda controller, now_ms: controller.create_topics(request, describable=describable)
        )

    def delete_topics(
        self, request: DeleteTopicsRequest, *, api_version: int
    ) -> Deferred[DeleteTopicsResponse]:
        """DeleteTopics by name or id."""
        return self.submit(
            lambda controller, now_ms: controller.delete_topics(request, api_version=api_version)
        )

    def alter_configs(
        self, resources: Sequence[AlteredResource], *, incremental: bool, validate_only: bool
    ) -> Deferred[list[Outcome]]:
        """AlterConfigs and IncrementalAlterConfigs; see `kbroker.controller.configs`."""
        return self.submit(
            lambda controller, now_ms: controller.alter_configs(
                resources, incremental=incremental, validate_only=validate_only
            )
        )

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        """UpdateFeatures; see `kbroker.controller.features`. Raises KafkaError."""
        kraft_version = self._driver.kraft_version
        return self.submit(
            lambda controller, now_ms: controller.update_features(
                request, api_version=api_version, kraft_version=kraft_version
            )
        )

    def ensure_topic(self, name: str) -> Deferred[ErrorCode]:
        """Create a topic with the broker's defaults unless it is there (auto.create.topics.enable
        is the caller's).

        Resolves with NONE also if somebody else was faster.
        """
        return self.submit(lambda controller, now_ms: controller.ensure_topic(name))

    def ensure_internal_topic(self, name: str) -> Deferred[ErrorCode]:
        """Create `__consumer_offsets`, `__transaction_state` or `__share_group_state` as
        configured, unless it is there.

        Resolves with NONE once it is in the image; with what CreateTopics would say otherwise.
        """
        return self.submit(lambda controller, now_ms: controller.ensure_internal_topic(name))

    def allocate_producer_ids(self) -> Deferred[ProducerIdBlock]:
        """The next block of 1000 producer ids for this broker."""
        return self.submit(
            lambda controller, now_ms: controller.allocate_producer_ids(
                self.node_id, self._proposed_broker_epoch()
            )
        )

    def register_broker(
        self,
        endpoints: Iterable[Endpoint],
        *,
        log_dirs: Sequence[Uuid] = (),
        previous_broker_epoch: int = -1,
        rack: str | None = None,
    ) -> Deferred[int]:
        """Register this node as a broker, fenced; resolves with its broker epoch.

        endpoints: the advertised listeners with their real ports. log_dirs: default all directory
        ids. previous_broker_epoch: from `.kafka_cleanshutdown`, -1 without; it tells a clean
        restart from an unclean one.
        """
        incarnation_id = random_uuid(self._random)
        listed = {endpoint.name: endpoint for endpoint in endpoints}
        directories = tuple(log_dirs) or self._properties.log_directory_ids
        return self.submit(
            lambda controller, now_ms: controller.register_broker(
                self.node_id,
                incarnation_id=incarnation_id,
                endpoints=listed,
                log_dirs=directories,
                previous_broker_epoch=previous_broker_epoch,
                rack=rack,
            )
        )

    def unfence_broker(self) -> Deferred[None]:
        """Let this broker lead: to be called (at once or later) after `register_broker`."""
        return self.submit(
            lambda controller, now_ms: controller.unfence_broker(
                self.node_id, self._proposed_broker_epoch()
            )
        )

    def assign_directories(self, assignments: Sequence[Assignment]) -> Deferred[None]:
        """Say in which log directories replicas of this broker are."""
        return self.submit(
            lambda controller, now_ms: controller.assign_directories(
                self.node_id, self._proposed_broker_epoch(), assignments
            )
        )

    def directories_failed(self, failed: Sequence[Uuid]) -> Deferred[None]:
        """Say that the disks of these log directories of this broker failed."""
        return self.submit(
            lambda controller, now_ms: controller.directories_failed(
                self.node_id, self._proposed_broker_epoch(), failed
            )
        )

    def controlled_shutdown(self) -> Deferred[None]:
        """Hand over every partition this broker leads and fence it: the first step of a clean stop,
        before the logs close.
        """
        epoch = self._proposed_broker_epoch()
        self.submit(
            lambda controller, now_ms: controller.begin_controlled_shutdown(self.node_id, epoch)
        )
        return self.submit(lambda controller, now_ms: controller.fence_broker(self.node_id, epoch))

    def _proposed_broker_epoch(self) -> int:
        registration = self._controller.image.brokers.get(self.node_id)
        return -1 if registration is None else registration.epoch

    # From the log.

    def _snapshot_read(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        """The newest snapshot, read at start. end_offset is exclusive, as in its file's name."""
        delta = MetadataDelta(MetadataImage(cluster_id=self.cluster_id))
        for record in records:
            delta.replay(decode_record(record))
        self._image = delta.apply(offset=end_offset - 1, epoch=epoch)
        self._loading = MetadataDelta(self._image)
        self._snapshot_offset = end_offset - 1

    def _committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """One committed batch, in order; `records` is empty for a control batch."""
        last_offset = base_offset + max(len(records), 1) - 1
        self._count_towards_snapshot(sum(map(len, records)))
        if not self._loaded:
            for record in records:
                self._loading.replay(decode_record(record))
            return
        proposals = self._proposals
        while proposals and proposals[0].end_offset <= last_offset:
            proposal = proposals.popleft()
            if proposal.image is not None:
                self._publish(proposal.image)
            self.when_applied(proposal.answer)

    def _finish_loading(self) -> None:
        loading = self._loading
        unended = loading.in_transaction
        abort = self._controller.abort_transaction()
        if unended:
            logger.warning("Node %d: dropping a metadata transaction without an end", self.node_id)
            loading.replay(abort)
        image = loading.apply(offset=self._driver.next_offset - 1, epoch=self._driver.epoch)
        if unended:
            # the log has to say so too: the next reader meets the beginning as well
            self._driver.append([encode_record(abort, image.metadata_version)])
        self._controller.image = image
        self._loaded = True
        if image.features:
            self._publish(image)

    def _publish(self, image: MetadataImage) -> None:
        if image.offset < self._image.offset:
            raise InvariantError(
                f"metadata image goes back from offset {self._image.offset} to {image.offset}"
            )
        old, self._image = self._image, image
        for listener in self._listeners:
            listener(old, image)
        self.when_applied(lambda: self._applied(image))

    def _applied(self, image: MetadataImage) -> None:
        self._applied_image = image

    # Snapshots.

    def _count_towards_snapshot(self, size_bytes: int) -> None:
        if size_bytes == 0:
            return
        now_ms = self._timers.monotonic_ms()
        self._bytes_since_snapshot += size_bytes
        interval_ms = self._config.get_int("metadata.log.max.snapshot.interval.ms")
        if self._snapshot_due_ms is None and interval_ms > 0:
            self._snapshot_due_ms = now_ms + interval_ms
        if not self._active or self._snapshot_task is not None:
            return
        due = self._snapshot_due_ms is not None and now_ms >= self._snapshot_due_ms
        limit = self._config.get_int("metadata.log.max.record.bytes.between.snapshots")
        if due or self._bytes_since_snapshot >= limit:
            self._snapshot_task = asyncio.get_running_loop().create_task(self.write_snapshot())
            self._snapshot_task.add_done_callback(self._snapshot_done)

    def _snapshot_done(self, task: asyncio.Task[None]) -> None:
        self._snapshot_task = None
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "Node %d: a metadata snapshot failed", self.node_id, exc_info=task.exception()
            )

    async def snapshot_idle(self) -> None:
        """Wait until no snapshot is being written. Cancelling the caller leaves it alone."""
        if self._snapshot_task is not None:
            await asyncio.wait({self._snapshot_task})

    async def write_snapshot(self) -> None:
        """Write the committed image as a snapshot, a few records per turn of the loop, and clean up
        behind it.
        """
        image = self._image
        if image.offset <= self._snapshot_offset:
            return
        self._bytes_since_snapshot, self._snapshot_due_ms = 0, None
        chunks: list[list[bytes]] = [[]]
        version = image.metadata_version
        for record in image_records(image):
            if len(chunks[-1]) >= SNAPSHOT_CHUNK_RECORDS:
                chunks.append([])
                await asyncio.sleep(0)
            chunks[-1].append(encode_record(record, version))
        await self._driver.write_snapshot(
            end_offset=image.offset + 1, epoch=image.epoch, chunks=chunks
        )
        self._snapshot_offset = image.offset
        logger.info(
            "Node %d: wrote a metadata snapshot up to offset %d", self.node_id, image.offset
        )


def controller_endpoints(config: BrokerConfig) -> dict[str, Endpoint]:
    """Where this controller is reached; Kafka's readers want at least one place."""
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


async def as_future(deferred: Deferred[R]) -> R:
    """Wait for a Deferred from a coroutine. Raises the KafkaError it fails with."""
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def resolve(value: Any) -> None:  # Any: the future's type is checked by the signature above
        if not future.done():
            future.set_result(value)

    def fail(error: KafkaError) -> None:
        if not future.done():
            future.set_exception(error)

    deferred.on_done(resolve, fail)
    return await future


__all__ = ["ControllerRuntime", "StartupError", "as_future", "controller_endpoints"]

"""The active controller's service: runs decisions, appends their records to the metadata log and
answers once they are committed (Kafka's QuorumController).

A decision is made on the image that contains every earlier proposal, committed or not, so the same
topic is never created twice. The response goes out when the quorum has committed the records; it
never waits for a broker. An operation may have 10,000 records, which take 0.1 s to encode and to
replay, so operations are carried out in slices of the loop, one after the other. When this node
loses leadership, all open proposals fail with NOT_CONTROLLER: whether their records will be
committed by the next leader is unknown.

While it is active, the service also keeps the sessions of brokers (`session_watch`) and runs the
periodic tasks (`periodic_tasks`). The decisions are in the other modules of this room, the log is
in `kbroker/quorum`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from kbroker.controller.brokers.broker_heartbeat import HeartbeatReply
from kbroker.controller.configs.features import KRaftVersions
from kbroker.controller.controller import RECORDS_PER_STEP, Controller
from kbroker.controller.periodic_tasks import PeriodicConfig, PeriodicTasks, periodic_tasks
from kbroker.controller.result import ControllerResult, Decision, DecisionSteps, in_steps
from kbroker.controller.session_watch import SessionWatch
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import encode_record
from kbroker.model import InvariantError
from kbroker.ports import Deferred, TimerHandle, Timers, as_kafka_error
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kbroker.quorum.raft.effects import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES: Final = 32
"""More than a record takes in a batch beside its value."""

RECORDS_PER_BATCH: Final = 1000
"""Of a decision that is not atomic. Every node makes one image of a batch; its last step takes some
ten milliseconds if each record is of another topic. Kafka: 10,000.
"""

R = TypeVar("R")

Operation = Callable[[Controller, int], Decision[R]]
"""A decision, perhaps in steps: gets the controller and the time (ms since the epoch)."""


class MetadataLog(KRaftVersions, Protocol):
    """The part of the metadata quorum that the service uses while this node leads it."""

    @property
    def epoch(self) -> int:
        """The epoch this node leads."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this node still leads that epoch."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset the next record will get."""
        ...

    def upgrade_kraft_version(self, level: int) -> None:
        """Append the control records of an upgrade that `check_kraft_upgrade` has let pass."""
        ...

    def append(self, records: Sequence[bytes], *, atomic: bool = True) -> object:
        """Append records as one batch; as several if atomic is False and they are too many."""
        ...


class Slices(Protocol):
    """Work in slices of the loop, in the order of `add`; `replication/time_slices` has one."""

    def add(self, steps: Iterator[object]) -> None:
        """Take these steps after all earlier ones; the first ones now if nothing is before them."""
        ...

    def finish(self) -> None:
        """Take all steps that are left, now."""
        ...


class _Proposal(msgspec.Struct, frozen=True):
    """A response that waits for a commit. end_offset: of its last record, inclusive."""

    end_offset: int
    answer: Callable[[], None]
    fail: Callable[[KafkaError], None]


class _Turn:
    """An operation's wait for its turn. timer: fails the operation if the turn comes too late."""

    __slots__ = ("has_come", "timer")

    def __init__(self) -> None:
        self.has_come = False
        self.timer: TimerHandle | None = None

    def come(self) -> None:
        self.has_come = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ControllerService:
    """One node's controller. inactive -> active (`activate`) -> inactive (`resign`), with each
    epoch this node leads. Loop thread only.

    committed_image: the newest image of this node's metadata loader, which replays a committed
    batch before `committed` is called with it.
    """

    def __init__(
        self,
        controller: Controller,
        log: MetadataLog,
        *,
        slices: Slices,
        committed_image: Callable[[], MetadataImage],
        timers: Timers,
        config: PeriodicConfig,
    ) -> None:
        self._controller = controller
        self._log = log
        self._operations = slices
        self._committed_image = committed_image
        self._timers = timers
        self._proposals: deque[_Proposal] = deque()
        self._is_active = False
        self._epoch = -1
        self._heartbeat_timeout_ms = max(config.get_int("broker.heartbeat.interval.ms") // 2, 1)
        self._sessions = SessionWatch(config.get_int("broker.session.timeout.ms"), timers)
        tasks = periodic_tasks(config, self._sessions)
        self._periodic = PeriodicTasks(tasks, timers, lambda run: self.submit(run))

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._is_active

    @property
    def node_id(self) -> int:
        return self._controller.node_id

    @property
    def kraft_version(self) -> int:
        """The finalized kraft.version, which is a fact of the quorum and not of the image."""
        return self._log.kraft_version

    @property
    def committed_image(self) -> MetadataImage:
        """The newest image of this node's metadata loader."""
        return self._committed_image()

    def activate(self, *, open_transaction: bool) -> None:
        """This node leads the quorum, and its loader has everything that was committed before.

        open_transaction: the previous leader left a metadata transaction without an end; it is
        aborted.
        """
        self._controller.start_from(self._committed_image())
        if open_transaction:  # none of its records are in the image, so nothing is replayed here
            abort = self._controller.abort_transaction()
            self._log.append([encode_record(abort, self._controller.image.metadata_version)])
        self._is_active, self._epoch = True, self._log.epoch
        self._sessions.begin(self._controller.image.brokers.values())
        self._periodic.start()

    def close(self) -> None:
        """Accept nothing more. What was submitted is still answered once it is committed."""
        self._operations.finish()
        self._is_active = False
        self._periodic.stop()

    def resign(self) -> None:
        """This node no longer leads the quorum, or its metadata log can no longer be written: fail
        all open proposals with NOT_CONTROLLER, in log order.
        """
        self._is_active = False
        self._periodic.stop()
        proposals, self._proposals = self._proposals, deque()
        if proposals:
            logger.warning(
                "Node %d: no longer the active controller, %d proposals fail",
                self.node_id,
                len(proposals),
            )
        for proposal in proposals:
            proposal.fail(_not_controller())

    # Brokers and their sessions.

    def register_broker(
        self, request: BrokerRegistrationRequest, *, is_in_this_process: bool = False
    ) -> Deferred[int]:
        """BrokerRegistration; see `Controller.register_broker`.

        is_in_this_process: the broker shares the process with this controller, so that its former
        incarnation has ended and its session need not run out first. It is never fenced for
        silence.
        """
        if is_in_this_process:
            self._sessions.spare(request.broker_id)

        def register(controller: Controller, now_ms: int) -> DecisionSteps[int]:
            del now_ms  # sessions are on the monotonic clock
            former = controller.image.brokers.get(request.broker_id)
            has_valid_session = (
                former is not None and not is_in_this_process and self._sessions.is_valid(former)
            )
            return controller.register_broker(
                request, kraft_version=self.kraft_version, has_valid_session=has_valid_session
            )

        return self.submit(register)

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Deferred[HeartbeatReply]:
        """BrokerHeartbeat; see `Controller.broker_heartbeat`. The broker's session is renewed on
        arrival, however long the heartbeat waits for its decision. After half of
        broker.heartbeat.interval.ms it fails with REQUEST_TIMED_OUT, as in Kafka: what the broker
        wanted then may be out of date, and its next heartbeat renews the session again.
        """
        broker = self._controller.image.brokers.get(request.broker_id)
        if self._is_active and broker is not None and broker.epoch == request.broker_epoch:
            self._sessions.contact(broker)
        return self.submit(
            lambda controller, _: controller.broker_heartbeat(request),
            timeout_ms=self._heartbeat_timeout_ms,
        )

    # Features.

    def update_features(
        self, request: UpdateFeaturesRequest, *, api_version: int
    ) -> Deferred[UpdateFeaturesResponse]:
        """UpdateFeatures; see `Controller.update_features`."""
        return self.submit(
            lambda controller, _: controller.update_features(
                request, api_version=api_version, quorum=self._log
            )
        )

    # Operations.

    def submit(self, operation: Operation[R], *, timeout_ms: int | None = None) -> Deferred[R]:
        """Decide after the operations before this one and append; resolves with the response once
        the records are committed. timeout_ms: if the operation's turn has not come by then, it
        fails with REQUEST_TIMED_OUT and is never carried out: its client no longer waits.
        Deviation: 0 or less is no limit; Kafka never carries out a request that has none.

        An operation without records is answered after the proposals before it, whose outcome it may
        rest on. Raises KafkaError, or fails with it, if the operation does so, and with
        NOT_CONTROLLER while this node is not the active controller or if it loses leadership.
        """
        if not self._is_active:
            raise _not_controller()
        answer: Deferred[R] = Deferred()
        turn, deadline_ms = _Turn(), None
        wait_ms = timeout_ms or 0
        if wait_ms > 0:
            deadline_ms = self._timers.monotonic_ms() + wait_ms
        self._operations.add(self._carry_out(operation, answer, turn, deadline_ms))
        if answer.error is not None:
            raise answer.error
        if wait_ms > 0 and not turn.has_come:
            turn.timer = self._timers.call_later(wait_ms, lambda: answer.fail(_too_busy()))
        return answer

    def _carry_out(
        self,
        operation: Operation[R],
        answer: Deferred[R],
        turn: _Turn,
        deadline_ms: int | None,
    ) -> Iterator[None]:
        """Steps: decide, encode; replay and append batch by batch, in one batch if the decision is
        atomic. No other operation begins before the last one.
        """
        turn.come()
        if answer.done:  # its turn came too late
            return
        controller, log = self._controller, self._log
        try:
            if not self._leads(log.epoch):  # lost while it waited for its turn
                raise _not_controller()
            if deadline_ms is not None and self._timers.monotonic_ms() > deadline_ms:
                raise _too_busy()
            controller.next_offset = log.next_offset
            decision = in_steps(operation(controller, self._timers.now_ms()))
            result = yield from self._while_leading(decision, log.epoch)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001  # top frame of the operation
            answer.fail(as_kafka_error(error))
            return
        if result.kraft_version is not None:
            log.upgrade_kraft_version(result.kraft_version)
        if not result.records and not self._proposals:
            answer.resolve(result.response)
            return

        def resolve() -> None:
            answer.resolve(result.response)

        if not result.records:
            end_offset = self._proposals[-1].end_offset
            self._proposals.append(_Proposal(end_offset, resolve, answer.fail))
            return
        epoch, atomic = log.epoch, result.atomic
        try:
            encoded = yield from self._encoded(result.records)
            _check_batch_size(encoded, atomic=atomic)
        except Exception as error:  # noqa: BLE001  # top frame; nothing has changed yet
            answer.fail(as_kafka_error(error))
            return
        size = len(encoded) if atomic else RECORDS_PER_BATCH
        for start in range(0, len(encoded), size):
            if start:
                yield
            end = start + size
            steps = self._append(
                result.records[start:end],
                encoded[start:end],
                partial(_Proposal, answer=resolve, fail=answer.fail)
                if end >= len(encoded)
                else _part_of_a_proposal,
                epoch,
                atomic=atomic,
            )
            if not (yield from steps):
                answer.fail(_not_controller())
                return

    def _encoded(self, records: Sequence[Message]) -> Generator[None, None, list[bytes]]:
        version = self._controller.image.metadata_version
        encoded: list[bytes] = []
        for start in range(0, len(records), RECORDS_PER_STEP):
            if start:
                yield
            some = records[start : start + RECORDS_PER_STEP]
            encoded += [encode_record(record, version) for record in some]
        return encoded

    def _append(
        self,
        records: Sequence[Message],
        encoded: Sequence[bytes],
        proposal: Callable[[int], _Proposal],
        epoch: int,
        *,
        atomic: bool,
    ) -> Generator[None, None, bool]:
        """Replay records in steps, then append them. proposal: made with the last one's offset.
        Returns False, with nothing appended, if leadership was lost during a pause.
        """
        controller, log = self._controller, self._log
        if not self._leads(epoch):
            return False
        end_offset = log.next_offset + len(encoded) - 1
        for _ in controller.replay_in_steps(records, offset=end_offset, epoch=epoch):
            yield
            if not self._leads(epoch):  # `activate` replaces the image
                return False
        if log.next_offset != end_offset - len(encoded) + 1:
            # the quorum appended control records during a pause
            end_offset = log.next_offset + len(encoded) - 1
            controller.adopt(replace(controller.image, offset=end_offset))
        self._proposals.append(proposal(end_offset))
        log.append(encoded, atomic=atomic)
        return True

    def _while_leading(
        self, decision: DecisionSteps[R], epoch: int
    ) -> Generator[None, None, ControllerResult[R]]:
        """Take the steps of a decision. Raises KafkaError(NOT_CONTROLLER) if leadership is lost
        during a pause.
        """
        while True:
            try:
                next(decision)
            except StopIteration as end:
                result: ControllerResult[R] = end.value
                return result
            yield
            if not self._leads(epoch):
                raise _not_controller()
            self._controller.next_offset = self._log.next_offset

    def _leads(self, epoch: int) -> bool:
        # A leader that has resigned keeps its epoch, and `resign` waits behind the replay.
        log = self._log
        return self._is_active and log.is_leader and log.epoch == epoch == self._epoch

    def committed(self, base_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """One committed batch, in log order, which is in the committed image: answer the proposals
        that end with it.
        """
        del epoch
        last_offset = base_offset + max(len(records), 1) - 1
        answered: list[_Proposal] = []
        while self._proposals and self._proposals[0].end_offset <= last_offset:
            answered.append(self._proposals.popleft())
        if not self._proposals:
            self._adopt_committed_image()
        for proposal in answered:
            proposal.answer()

    def _adopt_committed_image(self) -> None:
        """Every proposal is committed, so the proposed image equals the loader's. Keeping only one
        of the two halves the memory of the metadata.
        """
        committed = self._committed_image()
        if self._is_active and committed.offset == self._controller.image.offset:
            self._controller.adopt(committed)


def _part_of_a_proposal(end_offset: int) -> _Proposal:
    """One of the earlier batches of a decision, whose response waits for the last one."""
    return _Proposal(end_offset, lambda: None, lambda error: None)


def _check_batch_size(records: Sequence[bytes], *, atomic: bool) -> None:
    """Raises KafkaError(RECORD_LIST_TOO_LARGE) if a batch of them would be larger than readers of
    the metadata log take.
    """
    sizes = [len(record) + RECORD_OVERHEAD_BYTES for record in records]
    largest = sum(sizes) if atomic else max(sizes)
    if largest > MAX_BATCH_BYTES:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"The total record(s) size of {largest} exceeds the maximum allowed batch size of "
            f"{MAX_BATCH_BYTES}",
        )


def _too_busy() -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller was busy for too long.")


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "The active controller is not available.")

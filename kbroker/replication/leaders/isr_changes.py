"""AlterPartition: the ISR proposals of all partitions that one broker leads (Kafka's
AlterPartitionManager). KIP-497, KIP-903.

One request is in flight, with at most one proposal per partition; later proposals go into the next
request. `IsrChanges` decides what to send and when, `IsrChangeSender` is its loop over
`ports.Timers` and a port to the active controller. The partition reacts to the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.metrics import IsrUpdates
from kbroker.model import Uuid
from kbroker.ports import Deferred, TimerHandle, Timers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse
from kbroker.replication.leaders.isr import IsrProposal, ProposalOwner

RETRY_MS: Final = 50
"""Kafka's pause after an error of a whole request; here also after one that makes a partition send
its proposal again, so that a controller which refuses is not asked without pause.
"""

_PartitionKey = tuple[Uuid, int]


class IsrChanges:
    """A `ProposalQueue`. on_submitted: called for each proposal that is to be sent. updates: what
    the controller answered.
    """

    __slots__ = ("_broker_id", "_in_flight", "_not_before_ms", "_unsent", "on_submitted", "updates")

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._unsent: dict[_PartitionKey, tuple[ProposalOwner, IsrProposal]] = {}
        self._in_flight: dict[_PartitionKey, tuple[ProposalOwner, IsrProposal]] = {}
        self._not_before_ms: int | None = None
        self.updates = IsrUpdates()
        self.on_submitted: Callable[[], None] = lambda: None

    @property
    def is_waiting(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._in_flight)

    def submit(self, owner: ProposalOwner, proposal: IsrProposal) -> bool:
        """See `ProposalQueue`."""
        key = proposal.topic_id, proposal.topic_partition.partition
        if key in self._unsent or key in self._in_flight:
            return False
        self._unsent[key] = owner, proposal
        self.on_submitted()
        return True

    def request(self, broker_epoch: int, now_ms: int) -> AlterPartitionRequest | None:
        """The request to send now, if there is one; answer with `answered` or `failed`."""
        if self._in_flight or not self._unsent or now_ms < (self._not_before_ms or now_ms):
            return None
        self._not_before_ms = None
        self._in_flight, self._unsent = self._unsent, {}
        topics: dict[Uuid, AlterPartitionRequest.TopicData] = {}
        for (topic_id, index), (_, proposal) in self._in_flight.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = AlterPartitionRequest.TopicData(
                    topic_id=topic_id, partitions=[]
                )
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition_index=index,
                    leader_epoch=proposal.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(
                            broker_id=member,
                            broker_epoch=broker_epoch if member == self._broker_id else epoch,
                        )
                        for member, epoch in proposal.isr
                    ],
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=broker_epoch, topics=list(topics.values())
        )

    def delay_ms(self, now_ms: int) -> int | None:
        """When `request` is to be called again; None: only after the next `submit`, answer or
        failure.
        """
        if self._in_flight or not self._unsent:
            return None
        return max(0, (self._not_before_ms or now_ms) - now_ms)

    def answered(self, response: AlterPartitionResponse, now_ms: int) -> None:
        """The active controller answered. A proposal without an answer is sent again."""
        if response.error_code:
            self.failed(now_ms)
            return
        sent, self._in_flight = self._in_flight, {}
        for topic in response.topics:
            for answer in topic.partitions:
                key = topic.topic_id, answer.partition_index
                found = sent.pop(key, None)
                if found is None:
                    continue
                owner, proposal = found
                if answer.error_code:
                    self.updates.failed += 1
                    owner.isr_refused(proposal, ErrorCode(answer.error_code))
                    if key in self._unsent:
                        self._not_before_ms = now_ms + RETRY_MS
                else:
                    self.updates.expands += proposal.added is not None
                    self.updates.shrinks += proposal.added is None
                    owner.isr_committed(
                        proposal,
                        answer.isr,
                        leader_epoch=answer.leader_epoch,
                        partition_epoch=answer.partition_epoch,
                        now_ms=now_ms,
                    )
        if sent:
            self._in_flight = sent
            self.failed(now_ms)

    def failed(self, now_ms: int) -> None:
        """The request got no usable answer, so its proposals are sent again. If the controller has
        committed them, it answers with the committed ISR.
        """
        self._unsent = {**self._in_flight, **self._unsent}
        self._in_flight = {}
        self._not_before_ms = now_ms + RETRY_MS


class IsrChangeSender:
    """The loop of an `IsrChanges`. send: to the active controller. broker_epoch: gives that of the
    present registration.
    """

    __slots__ = ("_broker_epoch", "_changes", "_is_closed", "_send", "_timer", "_timers")

    def __init__(
        self,
        changes: IsrChanges,
        send: Callable[[AlterPartitionRequest], Deferred[AlterPartitionResponse]],
        timers: Timers,
        *,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._changes = changes
        self._send = send
        self._timers = timers
        self._broker_epoch = broker_epoch
        self._timer: TimerHandle | None = None
        self._is_closed = False
        changes.on_submitted = self._plan

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        """Send in a turn of its own: one request carries all proposals of this turn."""
        if self._timer is None and not self._is_closed:
            delay_ms = self._changes.delay_ms(self._timers.monotonic_ms())
            if delay_ms is not None:
                self._timer = self._timers.call_later(delay_ms, self._run)

    def _run(self) -> None:
        self._timer = None
        request = self._changes.request(self._broker_epoch(), self._timers.monotonic_ms())
        if request is None:
            self._plan()
            return
        try:
            answer = self._send(request)
        except KafkaError as error:  # refused at once by a controller in this process
            self._failed(error)
        else:
            answer.on_done(self._answered, self._failed)

    def _answered(self, response: AlterPartitionResponse) -> None:
        self._changes.answered(response, self._timers.monotonic_ms())
        self._plan()

    def _failed(self, error: KafkaError) -> None:
        del error  # of the connection, or NOT_CONTROLLER: the channel finds the next controller
        self._changes.failed(self._timers.monotonic_ms())
        self._plan()

"""The lives of three brokers under controllers that change, on the simulated network: one seed.

Real are `BrokerLifecycle`, `RemoteControllerChannel`, `NodeToController` with its channel, and
`ControllerService`; the metadata quorum is a log whose commits and leaders the seed draws. Brokers
learn of a leader late, connections break and are cut, brokers are killed, stop in order and start
again. Then everything heals, and within a bounded time every broker is in service and everything
that a broker asked for has an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kbroker.broker.controller_channel import BrokerRegistrationData
from kbroker.broker.lifecycle import BrokerLifecycle, BrokerState, LifecycleCore
from kbroker.broker.node_to_controller import ActiveController, NodeToController
from kbroker.broker.remote.remote_controller_channel import RemoteControllerChannel
from kbroker.client.channel.channel import Channel
from kbroker.client.channel.streams import Stream, StreamReceiver
from kbroker.client.cluster_view import BrokerAddress
from kbroker.controller.controller import Controller
from kbroker.controller.service import ControllerService
from kbroker.metadata.image import BrokerRegistration, Endpoint
from kbroker.metadata.records import decode_record
from kbroker.model import random_uuid
from kbroker.ports import Deferred
from kbroker.protocol.codecs.schema import Request, Response
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.framing import RequestHeader
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.replication.time_slices import TimeSlices
from kbroker.settings.broker import BrokerConfig
from tests.sim.process import SimProcess
from tests.sim.server import ALL_VERSIONS, ServerConnection, api_versions
from tests.sim.simulation import Simulation, SimulationFailure, failure_line
from tests.sim.streams import SimStreams
from tests.sim.two_brokers import CLUSTER_ID, MetadataLog, MetadataReader

NAME = "broker-lives"
BROKERS = (1, 2, 3)
CONTROLLERS = (11, 12, 13)
FAULTY_MS = 60_000
SETTLE_MS = 90_000
"""Longer than a session and than FORWARDING_RETRY_MS."""


class SimController:
    """A node with the controller role; it serves while it lives, active or not."""

    def __init__(self, node_id: int, world: BrokerLives) -> None:
        self.node_id = node_id
        self._reader = MetadataReader(node_id, world.log)
        timers = SimProcess(world.heap, world.simulation.random(f"{node_id}"), lambda: None)
        config = BrokerConfig.from_properties({"node.id": str(node_id)})
        self.service = ControllerService(
            Controller(config, random=world.simulation.random(f"ids {node_id}"), node_id=node_id),
            world.log,
            committed_image=lambda: self._reader.loader.image,
            timers=timers,
            config=config,
            slices=TimeSlices(timers, clock=lambda: 0.0),
        )
        world.simulation.network.attach(node_id, timers, accept=self._accept)

    def receive(self) -> None:
        """Replay what is committed, and answer the proposals in it."""
        while (batch := self._reader.receive()) is not None:
            self.service.committed(*batch)

    def activate(self) -> None:
        """This node leads the quorum."""
        self.receive()
        self.service.activate(open_transaction=False)

    def _accept(self, stream: Stream) -> StreamReceiver:
        return ServerConnection(stream, self._serve)

    def _serve(self, connection: ServerConnection, header: RequestHeader, request: Request) -> None:
        answer = partial(connection.answer, header)
        if isinstance(request, ApiVersionsRequest):
            answer(api_versions(ALL_VERSIONS))
            return
        handle, error_response = _HANDLERS[type(request)]
        try:
            response = handle(self.service, request)
        except KafkaError as error:
            answer(error_response(request, error.code))
            return
        response.on_done(answer, lambda error: answer(error_response(request, error.code)))


# Any: each API has a request class of its own
def _register(service: ControllerService, request: Any) -> Deferred[Response]:
    return service.register_broker(request).then(
        lambda epoch: BrokerRegistrationResponse(broker_epoch=epoch)
    )


def _heartbeat(service: ControllerService, request: Any) -> Deferred[Response]:
    return service.heartbeat(request).then(
        lambda reply: BrokerHeartbeatResponse(
            is_caught_up=reply.is_caught_up,
            is_fenced=reply.is_fenced,
            should_shut_down=reply.should_shut_down,
        )
    )


def _create(service: ControllerService, request: Any) -> Deferred[Response]:
    created = service.submit(lambda controller, _: controller.create_topics(request))
    return created.then(lambda response: response)


def _not_created(request: Any, code: ErrorCode) -> CreateTopicsResponse:
    result = CreateTopicsResponse.CreatableTopicResult
    return CreateTopicsResponse(
        topics=[result(name=topic.name, error_code=code) for topic in request.topics]
    )


_Handle = Callable[[ControllerService, Any], Deferred[Response]]
_Refuse = Callable[[Any, ErrorCode], Response]
_HANDLERS: dict[type[Request], tuple[_Handle, _Refuse]] = {
    BrokerRegistrationRequest: (
        _register,
        lambda _, code: BrokerRegistrationResponse(error_code=code),
    ),
    BrokerHeartbeatRequest: (_heartbeat, lambda _, code: BrokerHeartbeatResponse(error_code=code)),
    CreateTopicsRequest: (_create, _not_created),
}


class SimBroker:
    """One process of a broker, from its start to its end. has_ended: it may be started again."""

    def __init__(self, node_id: int, world: BrokerLives, number: int) -> None:
        self.node_id = node_id
        self._world = world
        random = world.simulation.random(f"{node_id} {number}")
        self._random = random
        self.process = process = SimProcess(world.heap, random, lambda: None)
        network = world.simulation.network
        network.attach(node_id, process)
        self._reader = MetadataReader(node_id, world.log)
        self._leader: ActiveController | None = None
        self._requests = NodeToController(
            lambda: Channel(SimStreams(network, node_id), process, random, client_id="broker"),
            lambda: self._leader,
            process,
            request_timeout_ms=5_000,
        )
        config = BrokerConfig.from_properties({"node.id": str(node_id), "num.partitions": "2"})
        self.channel = RemoteControllerChannel(
            config, self._requests, cluster_id=CLUSTER_ID, metadata_offset=self._offset
        )
        self.lifecycle = BrokerLifecycle(
            LifecycleCore(
                heartbeat_interval_ms=2_000,
                registration_timeout_ms=60_000,
                session_timeout_ms=9_000,
            ),
            self.channel,
            process,
            node_id=node_id,
            registration=BrokerRegistrationData(
                incarnation_id=random_uuid(random),
                endpoints={"PLAINTEXT": Endpoint("PLAINTEXT", "sim", node_id)},
                log_dirs=(bytes([100 + node_id]) * 16,),
            ),
        )
        self.has_ended = False
        process.run(self._start)

    def _offset(self) -> int:
        return self._reader.loader.image.offset

    def _start(self) -> None:
        self._follow()
        self.lifecycle.start().on_done(self._registered, lambda error: self.end())
        self.lifecycle.when_caught_up().on_done(self._caught_up, lambda error: None)

    def _follow(self) -> None:
        """Read what is committed, and learn of the leader, late."""
        self._reader.receive()
        leader = self._world.leader
        if self._random.random() < 0.5 and leader != self._leader:
            self._leader = leader
            self._requests.leader_changed()
        self.process.call_later(self._random.uniform(5, 300), self._follow)

    def _registered(self, broker_epoch: int) -> None:
        self._world.simulation.note(f"broker {self.node_id} is registered, epoch {broker_epoch}")

    def _caught_up(self, _: None) -> None:
        registered = self._reader.loader.image.brokers.get(self.node_id)
        assert registered is not None and registered.epoch >= self.lifecycle.broker_epoch
        self.lifecycle.unfence().on_done(lambda _: None, lambda error: None)

    def shut_down(self) -> None:
        """Stop in order."""
        self.lifecycle.shut_down().on_done(lambda _: self.end(), lambda error: self.end())

    def end(self) -> None:
        """The process ends, by itself or by kill -9."""
        if self.has_ended:
            return
        self.has_ended = True
        self.lifecycle.close()
        self._requests.close()
        self.process.kill()
        self._world.simulation.network.detach(self.node_id)

    @property
    def is_in_service(self) -> bool:
        """Whether the broker and the cluster agree that it is unfenced."""
        broker = self._world.image_brokers().get(self.node_id)
        return (
            self.lifecycle.state is BrokerState.RUNNING
            and broker is not None
            and broker.epoch == self.lifecycle.broker_epoch
            and not broker.fenced
        )


class BrokerLives:
    """One seed."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.simulation = Simulation(seed, is_traced=is_traced)
        self.heap = self.simulation.timers
        self.random = self.simulation.random("world")
        self.log = MetadataLog()
        self.leader: ActiveController | None = None
        self._is_quiet = False
        self._number = 0
        self.controllers = {node_id: SimController(node_id, self) for node_id in CONTROLLERS}
        self._reader = MetadataReader(0, self.log)
        self.asked: list[tuple[str, Deferred[ErrorCode]]] = []
        self._lead()
        bootstrap = [decode_record(data) for data in default_bootstrap_records()]
        active = self._active
        assert active is not None
        active.service.submit(lambda controller, _: controller.bootstrap(bootstrap))
        while self.log.committed < len(self.log.batches):  # no leader writes them a second time
            self.log.commit()
        active.receive()
        self.brokers: dict[int, SimBroker] = {}
        for node_id in BROKERS:
            self._start(node_id)

    def image_brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registrations that are committed."""
        while self._reader.receive() is not None:
            pass
        return self._reader.loader.image.brokers

    @property
    def _active(self) -> SimController | None:
        return None if self.leader is None else self.controllers[self.leader.address.node_id]

    def run(self) -> None:
        """Faults, then peace. Raises SimulationFailure."""
        try:
            self._run()
        except Exception as error:
            line = failure_line(NAME, self.simulation.seed, self.simulation, error)
            raise SimulationFailure(line) from error

    def _run(self) -> None:
        self._at_times(15, self._commit, is_fault=False)
        self._at_times(6_000, self._elect)
        self._at_times(8_000, self._cut)
        self._at_times(5_000, self._break)
        self._at_times(9_000, self._end_one)
        self._at_times(1_000, self._ask)
        self._at_times(500, self._restart, is_fault=False)
        self.simulation.run(FAULTY_MS)
        self._is_quiet = True
        self.simulation.network.heal_all()
        if self.leader is None:
            self._elect()
        assert self.simulation.run_until(self._is_settled, SETTLE_MS), self._why_not()
        for name, answer in self.asked:
            if answer.error is not None:
                code = answer.error.code
                assert code in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT), (
                    code.name
                )
            elif answer.value is ErrorCode.NONE:
                assert name in self._reader.loader.image.topics, f"{name} was acknowledged"
            else:  # no broker was in service
                assert answer.value is ErrorCode.INVALID_REPLICATION_FACTOR, answer.value.name

    def _is_settled(self) -> bool:
        return all(broker.is_in_service for broker in self.brokers.values()) and all(
            answer.done for _, answer in self.asked
        )

    def _why_not(self) -> str:
        states = {
            node_id: (broker.lifecycle.state.name, broker.is_in_service)
            for node_id, broker in self.brokers.items()
        }
        waiting = [name for name, answer in self.asked if not answer.done]
        return f"brokers {states}, no outcome for {waiting}"

    # -- what happens -----------------------------------------------------------------------------

    def _at_times(
        self, mean_ms: float, event: Callable[[], None], *, is_fault: bool = True
    ) -> None:
        def happen() -> None:
            if is_fault and self._is_quiet:
                return
            event()
            self.heap.call_later(self.random.uniform(0, 2 * mean_ms), happen)

        self.heap.call_later(self.random.uniform(0, 2 * mean_ms), happen)

    def _commit(self) -> None:
        """The next batch is committed, and some controllers have it."""
        if self.leader is None:
            return
        self.log.commit()
        for controller in self.controllers.values():
            if controller is self._active or self.random.random() < 0.5:
                controller.receive()

    def _elect(self) -> None:
        """Another leader, or none for a while."""
        if self._active is not None:
            self._active.service.resign()
            uncommitted = len(self.log.batches) - self.log.committed
            self.log.elect(self.random.randint(0, uncommitted))
        self.leader = None
        if not self._is_quiet and self.random.random() < 0.5:
            self.heap.call_later(self.random.uniform(0, 3_000), self._lead)
        else:
            self._lead()

    def _lead(self) -> None:
        if self.leader is not None:
            return
        node_id = self.random.choice(CONTROLLERS)
        self.leader = ActiveController(self.log.epoch, BrokerAddress(node_id, "sim", node_id))
        self.simulation.note(f"controller {node_id} leads epoch {self.log.epoch}")
        self.controllers[node_id].activate()

    def _cut(self) -> None:
        """A broker and a controller do not reach each other for a while."""
        broker, controller = self.random.choice(BROKERS), self.random.choice(CONTROLLERS)
        network = self.simulation.network
        self.simulation.note(f"broker {broker} does not reach controller {controller}")
        network.cut(broker, controller)

        def heal() -> None:
            network.heal(broker, controller)

        self.heap.call_later(self.random.uniform(0, 8_000), heal)

    def _break(self) -> None:
        broker, controller = self.random.choice(BROKERS), self.random.choice(CONTROLLERS)
        self.simulation.network.break_connections(broker, controller)

    def _end_one(self) -> None:
        broker = self.brokers[self.random.choice(BROKERS)]
        if broker.has_ended:
            return
        self.simulation.note(f"broker {broker.node_id} ends")
        if self.random.random() < 0.5:
            broker.end()
        elif broker.lifecycle.state is BrokerState.RUNNING:
            broker.shut_down()

    def _restart(self) -> None:
        for node_id, broker in self.brokers.items():
            is_leaving = broker.lifecycle.state >= BrokerState.PENDING_CONTROLLED_SHUTDOWN
            if broker.has_ended or (self._is_quiet and is_leaving):
                broker.end()
                self._start(node_id)

    def _start(self, node_id: int) -> None:
        self._number += 1
        self.simulation.note(f"broker {node_id} starts")
        self.brokers[node_id] = SimBroker(node_id, self, self._number)

    def _ask(self) -> None:
        """A broker has a topic created; several may ask for the same one."""
        broker = self.brokers[self.random.choice(BROKERS)]
        if broker.has_ended:
            return
        name = f"t{self.random.randrange(40)}"
        answer = broker.channel.ensure_topic(name)
        answer.on_done(lambda code: None, lambda error: None)
        self.asked.append((name, answer))


def run_seed(seed: int) -> None:
    """One seed. Raises SimulationFailure."""
    BrokerLives(seed).run()

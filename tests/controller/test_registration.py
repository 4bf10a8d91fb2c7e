"""A controller registers until the metadata log has its registration."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from kbroker.controller.controllers import register_controller
from kbroker.controller.registration import (
    BACKOFF_MAX_MS,
    ControllerRegistrar,
    registration_request,
)
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.features import SUPPORTED_FEATURES
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import ControllerRegistrationRequest
from tests.sim.timers import SimTimers

REQUEST = registration_request(
    3, incarnation_id=bytes(range(16)), endpoints=[Endpoint("CONTROLLER", "a", 9093)]
)


class World:
    """A registrar, the image it sees, and what it sent."""

    def __init__(self, level: int = 30) -> None:
        self.timers = SimTimers()
        self.sent: list[Deferred[None]] = []
        self.refuses = False
        self.image = MetadataImage(cluster_id="c")
        self.registrar = ControllerRegistrar(REQUEST, self.send, self.timers, Random(1))
        self.show(replace(self.image, features={"metadata.version": level}))

    def send(self, request: ControllerRegistrationRequest) -> Deferred[None]:
        assert request is REQUEST
        answer: Deferred[None] = Deferred()
        self.sent.append(answer)
        if self.refuses:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return answer

    def show(self, image: MetadataImage) -> None:
        old, self.image = self.image, image
        self.registrar.on_image(old, image)

    def commit(self, request: ControllerRegistrationRequest = REQUEST) -> None:
        delta = MetadataDelta(self.image)
        for record in register_controller(self.image, request).records:
            delta.replay(record)
        self.show(delta.apply(offset=self.image.offset + 1, epoch=1))


def test_the_request_says_what_this_release_supports() -> None:
    assert {
        each.name: (each.min_supported_version, each.max_supported_version)
        for each in REQUEST.features
    } == dict(SUPPORTED_FEATURES)
    (listener,) = REQUEST.listeners
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "a", 9093)


def test_nothing_is_sent_before_the_start() -> None:
    world = World()
    assert not world.sent
    world.registrar.start()
    assert len(world.sent) == 1


def test_one_request_at_a_time_until_it_is_in_the_log() -> None:
    world = World()
    world.registrar.start()
    world.show(replace(world.image, offset=1, features={"metadata.version": 29}))
    assert len(world.sent) == 1
    world.commit()
    world.sent[0].resolve(None)
    assert world.registrar.is_registered
    world.show(replace(world.image, offset=9, features={"metadata.version": 30}))
    assert len(world.sent) == 1


def test_a_refusal_is_tried_again_after_a_growing_pause() -> None:
    world = World()
    world.registrar.start()
    world.sent[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    pauses = []
    for attempt in range(1, 16):
        before_ms = world.timers.time_ms
        while len(world.sent) == attempt:
            assert world.timers.run_next(before_ms + 2 * BACKOFF_MAX_MS)
        pauses.append(world.timers.time_ms - before_ms)
        world.sent[attempt].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    assert 98 <= pauses[0] <= 102
    assert 196 <= pauses[1] <= 204
    assert all(BACKOFF_MAX_MS * 0.98 <= pause <= BACKOFF_MAX_MS * 1.02 for pause in pauses[-3:])


def test_a_new_chance_is_taken_at_once() -> None:
    """This node leads now: the pause after earlier failures is over."""
    world = World()
    world.registrar.start()
    world.sent[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    world.registrar.start()
    assert len(world.sent) == 2
    world.commit()
    world.sent[1].resolve(None)
    world.timers.advance(BACKOFF_MAX_MS)
    assert len(world.sent) == 2


def test_a_refusal_that_is_raised_counts_too() -> None:
    world = World()
    world.refuses = True
    world.registrar.start()
    assert len(world.sent) == 1
    world.refuses = False
    assert world.timers.run_next(world.timers.time_ms + 1000)
    assert len(world.sent) == 2


def test_it_waits_for_a_metadata_version_that_has_registrations() -> None:
    world = World(level=14)
    world.registrar.start()
    assert not world.sent
    world.show(replace(world.image, features={"metadata.version": 15}))
    assert len(world.sent) == 1


def test_another_incarnation_is_overruled() -> None:
    world = World()
    world.registrar.start()
    world.commit()
    world.sent[0].resolve(None)
    world.commit(registration_request(3, incarnation_id=bytes(16), endpoints=[]))
    assert len(world.sent) == 2
    world.commit()
    assert world.registrar.is_registered


def test_two_processes_with_one_id_say_so_and_write_ever_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two real ones wrote 40 records per second, and neither logged a line."""
    world = World()
    other = registration_request(
        3, incarnation_id=bytes(16), endpoints=[Endpoint("CONTROLLER", "b", 9094)]
    )
    world.registrar.start()
    pauses = []
    for attempt in range(1, 16):
        world.commit()
        world.sent[-1].resolve(None)
        before_ms = world.timers.time_ms
        world.commit(other)
        while len(world.sent) == attempt:
            assert world.timers.run_next(before_ms + 2 * BACKOFF_MAX_MS)
        pauses.append(world.timers.time_ms - before_ms)
    assert pauses[:4] == [0, 100, 200, 400] and pauses[-1] == BACKOFF_MAX_MS
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 15
    assert lines[1] == (
        "Node 3: another process has registered as controller 3, at b:9094: no two processes may "
        "have the same node.id; this one registers again in 100 ms"
    )


def test_nothing_is_sent_after_the_end() -> None:
    world = World()
    world.registrar.start()
    world.sent[0].fail(KafkaError(ErrorCode.NOT_CONTROLLER))
    world.registrar.close()
    world.timers.advance(BACKOFF_MAX_MS)
    world.commit(registration_request(3, incarnation_id=bytes(16), endpoints=[]))
    assert len(world.sent) == 1

"""Requests for the active controller, on the simulated network."""

from __future__ import annotations

from kbroker.broker.controller_requests import ControllerRequests
from kbroker.client.channel.channel import Channel
from kbroker.metadata.image import Endpoint
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from tests.client.channel.peers import SILENT, SimWorld, channel_of

TIMEOUT_MS = 500


class World:
    """Two controllers, of which a node believes one to lead."""

    def __init__(self) -> None:
        self.world = SimWorld()
        self.peers = {number: self.world.peer(number) for number in (1, 2)}
        for peer in self.peers.values():
            key = ApiKey.CONTROLLER_REGISTRATION
            peer.versions[int(key)] = valid_versions(key)
            peer.script(key, *[ControllerRegistrationResponse()] * 3)
        self.leader_id = 1
        self.listener = "CONTROLLER"
        self.opened = 0
        self.requests = ControllerRequests(
            self.open, self.leader, listener_name="CONTROLLER", timeout_ms=TIMEOUT_MS
        )

    def open(self) -> Channel:
        self.opened += 1
        return channel_of(self.world)

    def leader(self) -> tuple[int, list[Endpoint]]:
        address = self.world.address(max(self.leader_id, 1))
        others = Endpoint("OTHER", "nowhere", 1)
        return self.leader_id, [others, Endpoint(self.listener, address.host, address.port)]

    def send(self) -> ControllerRegistrationResponse | ErrorCode:
        answer: Deferred[ControllerRegistrationResponse] = self.requests.send(
            ControllerRegistrationRequest(), ControllerRegistrationResponse
        )
        self.world.until(lambda: answer.done)
        return answer.value if answer.error is None else answer.error.code

    def asked(self, number: int) -> int:
        return len(self.peers[number].asked(ApiKey.CONTROLLER_REGISTRATION))


def test_requests_follow_the_leader() -> None:
    world = World()
    assert not world.opened
    assert world.send() == ControllerRegistrationResponse()
    world.leader_id = 2
    assert world.send() == ControllerRegistrationResponse()
    assert (world.asked(1), world.asked(2), world.opened) == (1, 1, 1)


def test_nothing_is_sent_without_a_leader_that_can_be_reached() -> None:
    world = World()
    world.leader_id = -1
    assert world.send() is ErrorCode.NOT_CONTROLLER
    world.leader_id, world.listener = 1, "INSIDE"
    assert world.send() is ErrorCode.NOT_CONTROLLER
    assert not world.opened


def test_an_answer_that_does_not_come_fails_the_request() -> None:
    world = World()
    world.peers[1].script(ApiKey.CONTROLLER_REGISTRATION)
    for _ in range(3):
        world.send()
    world.peers[1].script(ApiKey.CONTROLLER_REGISTRATION, SILENT)
    assert world.send() is ErrorCode.REQUEST_TIMED_OUT


def test_nothing_is_sent_after_the_end() -> None:
    world = World()
    world.send()
    world.peers[1].script(ApiKey.CONTROLLER_REGISTRATION, SILENT)
    world.requests.close()
    assert world.send() is ErrorCode.NOT_CONTROLLER
    assert world.asked(1) == 1

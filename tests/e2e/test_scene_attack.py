"""Every generated attack on the telemetry of clients, and on the controller listener of a combined
node, scaled down and over connections: each is answered or ends its connection, no handler fails,
the node goes on. An attack that changed the metadata quorum is followed by a fresh node.

The neighbour `test_api_attack` has the other APIs of broker listeners.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from benchmarks.attack_bodies import Attack, name_of
from benchmarks.attack_controllers import ControllerWorld, QuorumView
from benchmarks.attack_scenes import CONTROLLER, SCENES, Api, Scene
from benchmarks.attack_telemetry import TelemetryWorld
from benchmarks.attack_values import Names
from benchmarks.attack_world import World, first_error
from kbroker.protocol.apis import ApiKey, request_class, response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import decode_response_header
from kbroker.testing import EmbeddedBroker
from scripts.ports import free_port
from tests.e2e.wire import receive_frame

SIZE: Final = 2048
WIDE_PARTITIONS: Final = 5
PATIENCE_S: Final = 3.0
"""A request that waits for an event is given up."""

FAILURES: Final = ("kbroker.server.dispatch", "kbroker.quorum.driver", "kbroker.node.node")
"""Loggers that tell of surprises, and why a node stops."""

OTHER_SCENES: Final = SCENES[1:]
CASES: Final = [
    pytest.param(scene, api, id=scene.title(api.api_key))
    for scene in OTHER_SCENES
    for api in sorted(scene.apis())
]


class Failures(logging.Handler):
    """What the loggers of `FAILURES` told as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def failures() -> Iterator[Failures]:
    handler = Failures()
    for name in FAILURES:
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in FAILURES:
        logging.getLogger(name).removeHandler(handler)


class Stage:
    """A node of a scene on a copy of a prepared directory."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self._base = folder / "base"
        self._data = folder / "data"
        self._scene = scene
        self._controller_port = free_port() if scene.listener == CONTROLLER else 0
        self._properties = scene.properties(self._controller_port)
        self.node: EmbeddedBroker | None = None
        self._world: World | None = None
        self._quorum: QuorumView | None = None
        self.worlds: dict[int, Sequence[Names]] = {}
        with EmbeddedBroker(self._properties, data=self._base) as node:
            world = self._world_on(node)
            world.prepare()
            world.close()

    def _world_on(self, node: EmbeddedBroker) -> World:
        if self._scene.listener == CONTROLLER:
            return ControllerWorld(
                node.host,
                node.port,
                controller_port=self._controller_port,
                wide_partitions=WIDE_PARTITIONS,
            )
        return TelemetryWorld(node.host, node.port)

    def start(self) -> None:
        """A fresh node."""
        self.stop()
        shutil.copytree(self._base, self._data)
        self.node = EmbeddedBroker(self._properties, data=self._data).start()
        self._world = self._world_on(self.node)
        self.worlds = self._world.join()
        if isinstance(self._world, ControllerWorld):
            self._quorum = self._world.state()

    def stop(self) -> None:
        """As a crash: a node without a leader of its quorum stops slowly."""
        if self._world is not None:
            self._world.close()
            self._world = None
        if self.node is not None:
            self.node.kill()
            self.node = None
        shutil.rmtree(self._data, ignore_errors=True)

    def has_changed(self, api_key: int) -> bool:
        """Whether another node is needed."""
        world = self._world
        return isinstance(world, ControllerWorld) and world.has_changed(self._quorum, api_key)

    def exchange(self, attack: Attack) -> bytes | None:
        """The response without its length; None if there is none."""
        assert self.node is not None
        address = (self.node.host, self._controller_port or self.node.port)
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(attack.frame(7))
                return receive_frame(connection)
            except (ConnectionError, TimeoutError):
                return None


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Scene, Stage]]:
    made: dict[Scene, Stage] = {}
    for scene in OTHER_SCENES:
        made[scene] = Stage(scene, tmp_path_factory.mktemp("stage"))
    yield made
    for stage in made.values():
        stage.stop()


def attacks_on(scene: Scene, api: Api, worlds: dict[int, Sequence[Names]]) -> list[Attack]:
    names = worlds.get(api.api_key) or worlds[0]
    return list(scene.generator(api, api.max_version, names, SIZE).attacks())


@pytest.mark.parametrize(("scene", "api"), CASES)
def test_every_attack_is_answered_or_refused(
    stages: dict[Scene, Stage], failures: Failures, scene: Scene, api: Api
) -> None:
    stage = stages[scene]
    stage.start()
    attacks = attacks_on(scene, api, stage.worlds)
    answered: dict[str, int] = {}
    for number in range(len(attacks)):
        attack = attacks[number]
        told = f"{attack.kind}: {attack.detail}"
        answer = stage.exchange(attack)
        assert not failures.lines, told
        assert stage.node is not None and stage.node.running, told
        if answer is not None:
            answered[attack.kind] = answered.get(attack.kind, 0) + 1
            _, position = decode_response_header(memoryview(answer), api.api_key, api.max_version)
            response, end = decode(response_class(api.api_key), answer, api.max_version, position)
            assert end == len(answer), told
            assert first_error(response) != ErrorCode.UNKNOWN_SERVER_ERROR, told
        if stage.has_changed(api.api_key):
            stage.start()
            attacks = attacks_on(scene, api, stage.worlds)
    assert answered["valid"], "the attack does not reach the handler"


@pytest.mark.parametrize(("scene", "api"), CASES)
def test_an_honest_body_is_one_that_the_codec_reads(scene: Scene, api: Api) -> None:
    for version in {api.min_version, api.max_version}:
        generator = scene.generator(api, version, [Names("plain", cluster_id="c")], SIZE)
        for attack in generator.attacks():
            if attack.kind in ("valid", "repeated", "distinct", "extreme", "payload"):
                body = attack.write()
                _, end = decode(request_class(api.api_key), body, version)
                assert end == len(body), attack.detail


def test_a_later_epoch_asks_for_a_fresh_node(stages: dict[Scene, Stage]) -> None:
    scene = OTHER_SCENES[-1]
    stage = stages[scene]
    stage.start()
    assert not stage.has_changed(ApiKey.VOTE)
    (api,) = (each for each in scene.apis() if each.api_key == ApiKey.VOTE)
    found = attacks_on(scene, api, stage.worlds)
    (later,) = (each for each in found if (each.kind, each.detail) == ("valid", "the next epoch"))
    assert stage.exchange(later) is not None
    assert stage.has_changed(ApiKey.VOTE), name_of(api.api_key)

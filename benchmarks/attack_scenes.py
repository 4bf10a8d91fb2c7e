"""Where APIs are attacked: on the broker listener of a node with default settings, with telemetry
of clients, and on the controller listener of a combined node.

A scene has a prepared directory, settings and APIs of its own. The neighbours are `attack_measure`,
which plays it, and `attack_world`, `attack_telemetry` and `attack_controllers`, its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks import attack_records
from benchmarks.attack_bodies import Generator, Payloads, name_of
from benchmarks.attack_controllers import ControllerWorld, envelope_payloads
from benchmarks.attack_telemetry import TELEMETRY_PROPERTIES, TelemetryWorld, telemetry_payloads
from benchmarks.attack_values import Names
from benchmarks.attack_world import PROPERTIES, World
from kbroker.protocol.apis import ApiKey, valid_versions
from kbroker.server.handlers import all_handlers, controller_handlers, telemetry_handlers

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

EXTRA: Final[Mapping[int, Payloads]] = {
    ApiKey.PUSH_TELEMETRY: telemetry_payloads,
    ApiKey.ENVELOPE: envelope_payloads,
}
"""Payloads of fields whose contents have a format of their own, by API."""


class Api(NamedTuple):
    """One that a listener serves, in these versions."""

    api_key: int
    min_version: int
    max_version: int


class Scene(NamedTuple):
    """listener: BROKER or CONTROLLER, whose port is attacked. properties: of the node, given a port
    for its controller listener.
    """

    listener: str
    apis: Callable[[], Sequence[Api]]
    properties: Callable[[int], Mapping[str, str]]
    world: Callable[[str, int, int], World]

    @property
    def has_controller_listener(self) -> bool:
        return self.listener == CONTROLLER

    def generator(self, api: Api, version: int, names: Sequence[Names], size: int) -> Generator:
        """Of the attacks on one version of an API."""
        return Generator(
            api.api_key,
            version,
            names,
            size,
            attack_records.payloads,
            EXTRA.get(api.api_key),
            tagged=self.listener == CONTROLLER,
        )

    def title(self, api_key: int) -> str:
        """The name of an API in the table."""
        name = name_of(api_key)
        return f"{name} (controller)" if self.listener == CONTROLLER else name


def _broker_apis() -> list[Api]:
    return [Api(each.api_key, each.min_version, each.max_version) for each in all_handlers()]


def _telemetry_apis() -> list[Api]:
    return [Api(each.api_key, each.min_version, each.max_version) for each in telemetry_handlers()]


def _controller_apis() -> list[Api]:
    """Those that have no handler of a broker listener: others are attacked there, and once more in
    Envelopes.
    """
    shared = {each.api_key for each in controller_handlers() if each in all_handlers()}
    apis = [
        Api(each.api_key, each.min_version, each.max_version)
        for each in controller_handlers()
        if each.api_key not in shared
    ]
    return [*apis, Api(ApiKey.ENVELOPE, *valid_versions(ApiKey.ENVELOPE))]


def controller_properties(port: int) -> dict[str, str]:
    """Of a node that is its whole cluster, with a controller listener on that port."""
    return {
        **PROPERTIES,
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
    }


SCENES: Final = (
    Scene(BROKER, _broker_apis, lambda port: PROPERTIES, lambda host, port, _: World(host, port)),
    Scene(
        BROKER,
        _telemetry_apis,
        lambda port: TELEMETRY_PROPERTIES,
        lambda host, port, _: TelemetryWorld(host, port),
    ),
    Scene(
        CONTROLLER,
        _controller_apis,
        controller_properties,
        lambda host, port, controller: ControllerWorld(host, port, controller_port=controller),
    ),
)


def chosen(listener: str | None, names: Sequence[str]) -> list[tuple[Scene, list[Api]]]:
    """The APIs of these names, as Kafka's schemas spell them, or all, by scene and API key. Raises
    ValueError for a name that no listener serves.
    """
    wanted = {name.lower() for name in names}
    found = []
    for scene in SCENES:
        if listener in (None, scene.listener):
            apis = [
                api
                for api in sorted(scene.apis())
                if not wanted or name_of(api.api_key).lower() in wanted
            ]
            found.append((scene, apis))
    unknown = wanted - {name_of(api.api_key).lower() for _, apis in found for api in apis}
    if unknown:
        raise ValueError(f"no API is called {', '.join(sorted(unknown))}")
    return [(scene, apis) for scene, apis in found if apis]

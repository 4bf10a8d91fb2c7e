"""process.roles: the valid combinations of settings on a controller, a broker, and a node that is
both (`KafkaConfig.validateValues` of Kafka 4.3).

Deviation: a node with both roles without voters and bootstrap servers is a single node (the quick
start), and the only voter of a static quorum needs no controller listener; Kafka rejects both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from kbroker.settings.sections.listeners import Listener
from kbroker.settings.sections.quorum import AUTO_JOIN, BOOTSTRAP_SERVERS, VOTERS, QuorumVoter
from kbroker.settings.tables.keys import ConfigError

BROKER: Final = "broker"
CONTROLLER: Final = "controller"

ROLES: Final = "process.roles"
LISTENERS: Final = "listeners"
LISTENER_NAMES: Final = "controller.listener.names"
INTER_BROKER: Final = "inter.broker.listener.name"

_ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})


class RoleSettings(Protocol):
    """The part of BrokerConfig that the rules read."""

    @property
    def node_id(self) -> int: ...
    @property
    def process_roles(self) -> tuple[str, ...]: ...
    @property
    def voters(self) -> tuple[QuorumVoter, ...]: ...
    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def listeners(self) -> tuple[Listener, ...]: ...
    @property
    def controller_listeners(self) -> tuple[Listener, ...]: ...
    @property
    def controller_listener_names(self) -> tuple[str, ...]: ...
    def get_bool(self, name: str) -> bool: ...
    def get_int(self, name: str) -> int: ...
    def get_list(self, name: str) -> tuple[str, ...]: ...
    def get_string(self, name: str) -> str: ...
    def get_optional_string(self, name: str) -> str | None: ...


def forms_quorum_alone(config: RoleSettings) -> bool:
    """Whether this node is the only voter, and no other node can become one without a change of
    settings.
    """
    if CONTROLLER not in config.process_roles or config.bootstrap_servers:
        return False
    if config.voters:
        return [voter.id for voter in config.voters] == [config.node_id]
    return BROKER in config.process_roles


def is_single_node(config: RoleSettings) -> bool:
    """Whether this node is the only voter, and a broker too. Other brokers may join it if it binds
    a controller listener.
    """
    return BROKER in config.process_roles and forms_quorum_alone(config)


def check_roles(config: RoleSettings, protocols: Mapping[str, str]) -> None:
    """Raises ConfigError for the first violated rule. protocols: security protocols by listener
    name.
    """
    roles = set(config.process_roles)
    if not is_single_node(config):
        _check_quorum_is_named(config)
    if CONTROLLER in roles:
        _check_controller(config)
        if BROKER not in roles:
            _check_controller_only(config)
    elif config.node_id in (voter.id for voter in config.voters):
        raise _error(
            config,
            VOTERS,
            f"if {ROLES} contains just the 'broker' role, the node id {config.node_id} must not be "
            "included in the set of voters",
            f"the controllers only, or {ROLES}=broker,controller",
        )
    else:
        _check_broker_only(config, protocols)
    if BROKER in roles and not config.listeners:
        perhaps = f"; perhaps all listeners appear in {LISTENER_NAMES}"
        message = f"There must be at least one listener for clients{perhaps}"
        raise _error(config, LISTENERS, message, "PLAINTEXT://localhost:9092, say")


def role_warnings(config: RoleSettings) -> list[str]:
    """Warnings for combinations that are accepted but without their apparent effect."""
    lines = []
    heartbeat, session = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"
    interval_ms, timeout_ms = config.get_int(heartbeat), config.get_int(session)
    if interval_ms * 2 > timeout_ms:
        lines.append(
            f"{heartbeat} ({interval_ms}) should be at most half of {session} ({timeout_ms}), or "
            "the controller fences a broker between two heartbeats"
        )
    names = config.controller_listener_names
    if set(config.process_roles) == {BROKER} and len(names) > 1:
        lines.append(
            f"{LISTENER_NAMES} has several entries, of which a broker uses the first, {names[0]}"
        )
    return lines


def _check_quorum_is_named(config: RoleSettings) -> None:
    if not config.voters and not config.bootstrap_servers:
        raise _error(
            config,
            ROLES,
            f"either {BOOTSTRAP_SERVERS} or {VOTERS} must name the controllers",
            f"{BOOTSTRAP_SERVERS}=host:port, or {ROLES}=broker,controller for a single node",
        )


def _check_controller(config: RoleSettings) -> None:
    ids = [voter.id for voter in config.voters]
    if ids and config.node_id not in ids:
        raise _error(
            config,
            VOTERS,
            f"if {ROLES} contains the 'controller' role, the node id {config.node_id} must be "
            "included in the set of voters",
            f"one entry {config.node_id}@host:port",
        )
    if is_single_node(config) and not config.controller_listener_names:
        return
    bound = [listener.name for listener in config.controller_listeners]
    if not bound:
        raise _error(
            config,
            LISTENER_NAMES,
            f"it must contain at least one value appearing in {LISTENERS} when {ROLES} contains "
            "the 'controller' role",
            f"CONTROLLER, with CONTROLLER://:9093 in {LISTENERS}",
        )
    missing = [name for name in config.controller_listener_names if name not in bound]
    if missing:
        raise _error(
            config,
            LISTENER_NAMES,
            f"it must only contain values appearing in {LISTENERS}; {', '.join(missing)} does not",
            ", ".join(bound),
        )


def _check_controller_only(config: RoleSettings) -> None:
    if config.listeners:
        others = ", ".join(map(str, config.listeners))
        raise _error(
            config,
            LISTENERS,
            f"it must only contain listeners of {LISTENER_NAMES} when {ROLES}=controller; {others} "
            "is none",
            f"names of {LISTENER_NAMES} only",
        )
    name = config.get_optional_string(INTER_BROKER)
    if name is not None and name.upper() in config.controller_listener_names:
        raise ConfigError(
            INTER_BROKER,
            name,
            f"{LISTENER_NAMES} must not contain it when {ROLES}=controller",
            "a listener of the brokers",
        )


def _check_broker_only(config: RoleSettings, protocols: Mapping[str, str]) -> None:
    names = config.controller_listener_names
    if not names:
        raise ConfigError(
            LISTENER_NAMES,
            "",
            f"it must contain at least one value when {ROLES}=broker: the listener of the "
            "controllers",
            "CONTROLLER, say",
        )
    if config.controller_listeners:
        here = ", ".join(map(str, config.controller_listeners))
        raise _error(
            config,
            LISTENERS,
            f"it must not contain a listener of {LISTENER_NAMES} when {ROLES}=broker; {here} is "
            "one",
            "listeners of the broker only",
        )
    for name in names:
        if name not in protocols:
            raise _error(
                config,
                LISTENER_NAMES,
                f"the controller listener {name} is not in listener.security.protocol.map",
                ", ".join(sorted(protocols)),
            )
    if config.get_bool(AUTO_JOIN):
        message = f"it is only supported when {ROLES} contains the 'controller' role"
        raise ConfigError(AUTO_JOIN, "true", message, "false")


def advertised_controllers(
    listeners: Sequence[Listener],
    advertised: Sequence[Listener],
    names: Sequence[str],
    own_voter: QuorumVoter | None,
) -> tuple[Listener, ...]:
    """The addresses of this controller for other nodes, in the order of controller.listener.names.

    advertised: the entries of advertised.listeners, which take precedence. own_voter: this node's
    entry of controller.quorum.voters, used for the first listener if that is bound to every
    interface. A host "" is this machine's own name.
    """
    found: list[Listener] = []
    told = {each.name: each for each in advertised}
    bound = {each.name: each for each in listeners}
    for position, name in enumerate(names):
        listener = bound.get(name)
        if listener is None:
            continue
        protocol = listener.security_protocol
        if name in told:
            found.append(told[name])
        elif listener.host not in _ANY_HOST:
            found.append(listener)
        elif position == 0 and own_voter is not None:
            found.append(Listener(name, own_voter.host, own_voter.port, protocol, True))
        else:
            found.append(Listener(name, "", listener.port, protocol, True))
    return tuple(found)


def _error(config: RoleSettings, name: str, reason: str, allowed: str) -> ConfigError:
    value = config.process_roles if name == ROLES else config.get_list(name)
    return ConfigError(name, ",".join(value), reason, allowed)

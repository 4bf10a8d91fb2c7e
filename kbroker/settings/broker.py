"""`BrokerConfig`: a broker's static configuration, checked, with typed access by Kafka's names.

Topic defaults in typed form are in `log_config`, the network's and the group coordinator's in
`network` and `group_coordinator`. Without any settings a broker is a single node with id 1, on port
9092 of localhost, with its data in ./data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kbroker.model import StartupError
from kbroker.settings import rules
from kbroker.settings.legacy import translate
from kbroker.settings.properties import parse_overrides, read_properties
from kbroker.settings.sections.listeners import (
    Listener,
    check_advertised,
    check_served,
    parse_listeners,
    parse_protocol_map,
)
from kbroker.settings.sections.quorum import (
    BOOTSTRAP_SERVERS,
    VOTERS,
    QuorumVoter,
    parse_bootstrap_servers,
    parse_voters,
)
from kbroker.settings.sections.roles import (
    BROKER,
    CONTROLLER,
    advertised_controllers,
    check_roles,
    forms_quorum_alone,
    is_single_node,
    role_warnings,
)
from kbroker.settings.sections.security import refuse_unserved
from kbroker.settings.tables.keys import (
    ConfigError,
    ConfigKey,
    Value,
    describe_allowed,
    parse,
    to_text,
)
from kbroker.settings.tables.served import OWN_KEYS, SINGLE_NODE_DEFAULTS, WITHOUT_FILE_DEFAULTS
from kbroker.settings.tables.table import BROKER_KEYS
from kbroker.settings.warnings import warnings_for

logger = logging.getLogger(__name__)

DEFAULT_NODE_ID = 1


class BrokerConfig:
    """The settings of one broker. Immutable; every explicit value was parsed and checked.

    explicit: the settings of the file, as text, with current key names. dynamic: the settings
    changed while the broker runs, which override those (`with_dynamic`). warnings: lines for the
    operator.
    """

    __slots__ = (
        "_defaults",
        "_file_defaults",
        "_values",
        "advertised_controller_listeners",
        "advertised_listeners",
        "bootstrap_servers",
        "controller_listener_names",
        "controller_listeners",
        "dynamic",
        "explicit",
        "inter_broker_listener_name",
        "listeners",
        "log_dirs",
        "metadata_log_dir",
        "node_id",
        "process_roles",
        "source",
        "voters",
        "warnings",
    )

    advertised_controller_listeners: tuple[Listener, ...]
    """The addresses for other nodes, in the form of `advertised_listeners`."""
    advertised_listeners: tuple[Listener, ...]
    """The addresses for clients; host "" means this host's own name, port 0 the bound port."""
    controller_listener_names: tuple[str, ...]
    controller_listeners: tuple[Listener, ...]
    """The listeners of this node's controller; none on a broker."""
    listeners: tuple[Listener, ...]
    """The listeners for clients of this broker; none on a node that is only a controller."""
    inter_broker_listener_name: str
    """On a node that is only a controller: "" unless it is set."""
    voters: tuple[QuorumVoter, ...]
    """The static voters of controller.quorum.voters."""

    def __init__(
        self,
        explicit: Mapping[str, str],
        values: dict[str, Value],
        source: str,
        defaults: Mapping[str, str],
        dynamic: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.explicit: Mapping[str, str] = MappingProxyType(dict(explicit))
        self.dynamic: Mapping[str, str] = MappingProxyType(dict(dynamic))
        self.source = source
        self.warnings: tuple[str, ...] = ()
        self._values = values
        self._file_defaults = self._defaults = defaults
        self.node_id = self._node_id()
        self.process_roles = self._list_or("process.roles", (BROKER, CONTROLLER))
        self.voters = parse_voters(self.get_list(VOTERS))
        self.bootstrap_servers = parse_bootstrap_servers(self.get_list(BOOTSTRAP_SERVERS))
        if self.is_single_node:
            self._defaults = {**SINGLE_NODE_DEFAULTS, **defaults}
        self.log_dirs = self.get_list("log.dirs") or self.get_list("log.dir")
        self.metadata_log_dir = self.get_optional_string("metadata.log.dir") or self.log_dirs[0]
        refuse_unserved(self.explicit, self.dynamic)
        self._set_listeners()
        rules.check(self)

    @property
    def is_broker(self) -> bool:
        """Whether process.roles has the broker role."""
        return BROKER in self.process_roles

    @property
    def is_controller(self) -> bool:
        """Whether process.roles has the controller role."""
        return CONTROLLER in self.process_roles

    @property
    def is_single_node(self) -> bool:
        """Whether this node is the only voter, and a broker too."""
        return is_single_node(self)

    @property
    def is_whole_cluster(self) -> bool:
        """Whether no other node can join: a single node that binds no controller listener."""
        return self.is_single_node and not self.controller_listeners

    @property
    def forms_quorum_alone(self) -> bool:
        """Whether this node is the only voter."""
        return forms_quorum_alone(self)

    @classmethod
    def load(cls, path: str | Path | None, overrides: Sequence[str] = ()) -> BrokerConfig:
        """The settings of a properties file and `key=value` pairs. Raises StartupError.

        path: None for no file; the broker then listens on localhost only and keeps its data in
        ./data, unless the pairs say otherwise.
        """
        overriding = parse_overrides(overrides)
        if path is None:
            overridden = frozenset(overriding)
            return cls._build(overriding, "defaults", overridden, WITHOUT_FILE_DEFAULTS)
        pairs = {**read_properties(Path(path)), **overriding}
        return cls._build(pairs, str(path), frozenset(overriding))

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], source: str = "properties"
    ) -> BrokerConfig:
        """The settings of these pairs. source: their origin, for the message of a StartupError."""
        return cls._build(properties, source, frozenset())

    @classmethod
    def _build(
        cls,
        properties: Mapping[str, str],
        source: str,
        overridden: frozenset[str],
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> BrokerConfig:
        try:
            explicit, notes = translate(properties)
            values = {
                name: parse(_key(name), text) for name, text in explicit.items() if _known(name)
            }
            config = cls(explicit, values, source, defaults)
            config.warnings = (*notes, *warnings_for(explicit), *role_warnings(config))
        except ConfigError as error:
            raise _startup_error(error, source, overridden) from None
        for line in config.warnings:
            logger.warning("%s: %s", source, line)
        return config

    def with_dynamic(self, dynamic: Mapping[str, str]) -> BrokerConfig:
        """The settings of the file, overridden by the dynamic ones, which replace the former
        dynamic ones. Raises ConfigError for a value or combination that would also be invalid in
        the file.
        """
        values = {
            name: parse(_key(name), text)
            for name, text in {**self.explicit, **dynamic}.items()
            if _known(name)
        }
        config = BrokerConfig(self.explicit, values, self.source, self._file_defaults, dynamic)
        config.warnings = self.warnings
        return config

    def is_explicit(self, name: str) -> bool:
        """Whether the key was set, rather than left to its default."""
        return name in self.explicit or name in self.dynamic

    def default_text(self, name: str) -> str | None:
        """The default as text; a single node has defaults for one replica, and without a file local
        ones.
        """
        return self._defaults.get(name, _key(name).default)

    def get(self, name: str) -> Value:
        """The value or the default, parsed. Raises KeyError for a key that is not in the table."""
        try:
            return self._values[name]
        except KeyError:
            text = self.default_text(name)
            value = None if text is None else parse(_key(name), text) if text else _empty(name)
            self._values[name] = value
            return value

    def get_int(self, name: str) -> int:
        """An int, short or long."""
        value = self.get(name)
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}, not a whole number")
        return value

    def get_optional_int(self, name: str) -> int | None:
        """An int, short or long that may be null."""
        return None if self.get(name) is None else self.get_int(name)

    def get_bool(self, name: str) -> bool:
        """A boolean."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, not a boolean")
        return value

    def get_float(self, name: str) -> float:
        """A double."""
        value = self.get(name)
        if not isinstance(value, float):
            raise TypeError(f"{name} is {value!r}, not a double")
        return value

    def get_string(self, name: str) -> str:
        """A string, class or password that is not null."""
        value = self.get(name)
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not a string")
        return value

    def get_optional_string(self, name: str) -> str | None:
        """A string, class or password that may be null."""
        return None if self.get(name) is None else self.get_string(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        """A list; null is the empty list."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise TypeError(f"{name} is {value!r}, not a list")
        return value

    def of_listener(self, listener: str, name: str) -> Value:
        """The value of `listener.name.<listener>.<name>`, None if it is not set. Raises ConfigError
        for an invalid one.
        """
        prefixed = f"listener.name.{listener.lower()}.{name}"
        text = self.dynamic.get(prefixed, self.explicit.get(prefixed))
        return None if text is None else parse(_key(name)._replace(name=prefixed), text)

    def text(self, name: str) -> str | None:
        """The effective value as Kafka prints it."""
        if name == "node.id" or name == "broker.id":
            return str(self.node_id)
        if name == "process.roles":
            return ",".join(self.process_roles)
        return to_text(self.get(name))

    def __repr__(self) -> str:
        return f"BrokerConfig(node_id={self.node_id}, source={self.source!r})"

    def _list_or(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return self.get_list(name) if self.is_explicit(name) else default

    def _node_id(self) -> int:
        node_id, broker_id = self.get_optional_int("node.id"), self.get_int("broker.id")
        if node_id is None:
            return broker_id if broker_id >= 0 else DEFAULT_NODE_ID
        if self.is_explicit("broker.id") and broker_id != node_id:
            message = "You must set `node.id` to the same value as `broker.id`."
            raise ConfigError("broker.id", str(broker_id), message, f"{node_id}, or leave it out")
        return node_id

    def _set_listeners(self) -> None:
        names = tuple(name.upper() for name in self.get_list("controller.listener.names"))
        self.controller_listener_names = names
        key = "listener.security.protocol.map"
        protocols = parse_protocol_map(self.get_string(key), names, self.is_explicit(key))
        every = parse_listeners("listeners", self.get_list("listeners"), protocols, names)
        self.listeners = tuple(item for item in every if not item.is_controller)
        self.controller_listeners = tuple(item for item in every if item.is_controller)
        check_served(every, [(name, protocols[name]) for name in names if name in protocols])
        check_roles(self, protocols)
        key = "advertised.listeners"
        told: tuple[Listener, ...] = ()
        if self.is_explicit(key):
            told = parse_listeners(key, self.get_list(key), protocols, names)
            check_advertised(told, every)
            self.advertised_listeners = tuple(item for item in told if not item.is_controller)
        else:
            self.advertised_listeners = tuple(
                Listener(item.name, "", item.port, item.security_protocol)
                if item.host in ("0.0.0.0", "::")
                else item
                for item in self.listeners
            )
        self.advertised_controller_listeners = advertised_controllers(
            self.controller_listeners,
            [item for item in told if item.is_controller],
            names,
            next((voter for voter in self.voters if voter.id == self.node_id), None),
        )
        self.inter_broker_listener_name = self._inter_broker_name()

    def _inter_broker_name(self) -> str:
        key, protocol_key = "inter.broker.listener.name", "security.inter.broker.protocol"
        name = self.get_optional_string(key)
        if name is not None and self.is_explicit(protocol_key):
            message = f"Only one of {key} and {protocol_key}"
            raise ConfigError(key, name, message, "one of the two keys")
        if not self.is_broker:
            return (name or "").upper()
        names = [listener.name for listener in self.advertised_listeners]
        if name is None:
            name = self.get_string(protocol_key)
            if self.is_single_node and name not in names:
                return names[0]
        if name.upper() not in names:
            message = "It must be a listener name defined in advertised.listeners"
            raise ConfigError(key, name, message, ", ".join(names))
        return name.upper()


def _known(name: str) -> bool:
    return name in BROKER_KEYS or name in OWN_KEYS


def _key(name: str) -> ConfigKey:
    key = BROKER_KEYS.get(name)
    return key if key is not None else OWN_KEYS[name]


def _empty(name: str) -> Value:
    """An empty default, which the validator may not accept (controller.quorum.voters)."""
    return () if _key(name).type.name == "LIST" else ""


def _startup_error(error: ConfigError, source: str, overridden: frozenset[str]) -> StartupError:
    where = f"--override {error.name}" if error.name in overridden else f"{source}: {error.name}"
    allowed = error.allowed
    if not allowed and _known(error.name):
        allowed = describe_allowed(_key(error.name))
    reason = str(error).removeprefix(
        f"Invalid value {error.value} for configuration {error.name}: "
    )
    return StartupError(f"{where}={error.value}: {reason.rstrip('.')}; allowed: {allowed}")

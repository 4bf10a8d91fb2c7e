"""Imports the policies of the settings (`controller/policies`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from kbroker.controller.policies import Policies
from kbroker.model import StartupError
from kbroker.settings.broker import BrokerConfig

CREATE_TOPIC: Final = "create.topic.policy.class.name"
ALTER_CONFIG: Final = "alter.config.policy.class.name"


def load_policies(config: BrokerConfig) -> Policies:
    """The policies of a node. Raises StartupError for one that cannot be imported or created:
    without it a node would accept requests that it should reject.
    """
    return Policies(_load(config, CREATE_TOPIC), _load(config, ALTER_CONFIG))


# Any: the operator's class; `Policies` has its interface
def _load(config: BrokerConfig, key: str) -> Any:
    text = config.get_optional_string(key)
    if not text:
        return None
    return load_class(config, key, text, method="validate")


# Any: as above
def load_class(config: BrokerConfig, key: str, text: str, *, method: str) -> Any:
    """An instance of the class `module:Class` in a setting; `configure` is called with the broker's
    properties. method: a method that it must have. Raises StartupError.
    """
    module_name, colon, class_name = text.partition(":")
    where = f"{config.source}: {key}={text}"
    if not colon or not module_name or not class_name:
        raise StartupError(f"{where}: it is no Python class; write it as module:Class")
    try:
        made = getattr(import_module(module_name), class_name)()
        if not callable(getattr(made, method, None)):
            raise StartupError(f"{where}: the class has no method {method}")
        configure = getattr(made, "configure", None)
        if configure is not None:
            configure(dict(config.explicit))
    except StartupError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise StartupError(f"{where}: the class cannot be imported and made: {reason}") from error
    return made

"""kbroker: a Kafka-compatible broker in pure Python.

The public names are in `__all__`; each is loaded at its first use: `import kbroker` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.node.node import Broker
    from kbroker.settings.broker import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "__version__"]

__version__ = "0.1.0"

_HOMES: Final[Mapping[str, str]] = {
    "Broker": "kbroker.node.node",
    "BrokerConfig": "kbroker.settings.broker",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kbroker' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)

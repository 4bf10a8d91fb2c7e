"""Brokers for tests, kbroker's own and those of its users: in this process (`EmbeddedBroker`,
`EmbeddedCluster`) or in a separate process (`BrokerProcess`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.testing.embedded import EmbeddedBroker, EmbeddedBrokerFailed
    from kbroker.testing.embedded_cluster import EmbeddedCluster
    from kbroker.testing.process import BrokerProcess

__all__ = ["BrokerProcess", "EmbeddedBroker", "EmbeddedBrokerFailed", "EmbeddedCluster"]

_HOMES: Final[Mapping[str, str]] = {
    "BrokerProcess": "kbroker.testing.process",
    "EmbeddedBroker": "kbroker.testing.embedded",
    "EmbeddedBrokerFailed": "kbroker.testing.embedded",
    "EmbeddedCluster": "kbroker.testing.embedded_cluster",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kbroker.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)

"""The effective settings of one node: those of its file, overridden by those in the metadata for
this node and for all nodes (KIP-226; Kafka's DynamicConfigPublisher and DynamicBrokerConfig).

It is the first listener of the metadata loader, so that all other listeners see the new settings.
Components that use a setting register with `follow`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kbroker.log_lines import shown
from kbroker.metadata.image import MetadataImage
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.dynamic import acts, broker_key, in_force
from kbroker.settings.listener_keys import has_no_effect, is_dynamic_security

logger = logging.getLogger(__name__)

Reconfigure = Callable[[BrokerConfig, BrokerConfig], None]
"""Called with the previous and the current settings."""


class DynamicConfig:
    """static: the settings of the file. current: the effective settings. Loop thread only."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        self._stored: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
        self._followers: list[Reconfigure] = []

    def follow(self, follower: Reconfigure) -> None:
        """Call follower after each change, in the order of registration."""
        self._followers.append(follower)

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Apply the settings of a new image."""
        del old
        node_id = self.static.node_id
        stored = new.broker_configs(None), new.broker_configs(node_id)
        if stored == self._stored:
            return
        self._stored = stored
        before, self.current = self.current, in_force(self.static, new)
        names = _changed(before, self.current)
        if not names:
            return
        logger.info("Node %d: effective settings changed: %s", node_id, _shown(self.current, names))
        security = [name for name in names if name in self.current.dynamic and has_no_effect(name)]
        if security:
            logger.warning(
                "Node %d: its listeners are PLAINTEXT, where these settings of TLS and SASL have no"
                " effect: %s; connections are not encrypted and clients not authenticated",
                node_id,
                shown(", ".join(security)),
            )
        idle = [name for name in names if not (acts(name) or is_dynamic_security(name))]
        if idle:
            text = shown(", ".join(idle))
            logger.warning(
                "Node %d: settings without effect in this version of kbroker: %s", node_id, text
            )
        for follower in self._followers:
            follower(before, self.current)


def _changed(before: BrokerConfig, now: BrokerConfig) -> list[str]:
    names = sorted(before.dynamic.keys() | now.dynamic.keys())
    return [name for name in names if before.dynamic.get(name) != now.dynamic.get(name)]


def _shown(config: BrokerConfig, names: list[str]) -> str:
    """`name=value`, without passwords, or that the value of the file applies again."""
    return ", ".join(
        f"{name}={'[hidden]' if _is_hidden(name) else shown(config.dynamic[name])}"
        if name in config.dynamic
        else f"{name} as in the file"
        for name in names
    )


def _is_hidden(name: str) -> bool:
    row = broker_key(name)
    return row is None or row.sensitive

"""Which roles a node is built with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kbroker.model import StartupError
from kbroker.node.node import Broker
from kbroker.settings.broker import BrokerConfig


@pytest.mark.parametrize("roles", ["broker", "controller"])
def test_one_role_alone_is_refused_in_one_line(tmp_path: Path, roles: str) -> None:
    config = BrokerConfig.from_properties(
        {
            "process.roles": roles,
            "listeners": f"{'PLAINTEXT' if roles == 'broker' else 'CONTROLLER'}://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
            "log.dirs": str(tmp_path / "data"),
        }
    )
    with pytest.raises(StartupError, match=f"process.roles={roles}: ") as caught:
        asyncio.run(Broker(config).start())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()

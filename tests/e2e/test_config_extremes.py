"""A few rounds of `config_extremes` on a broker of its own; no line of its log is an error."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from kbroker.client.cluster import Client
from kbroker.testing import EmbeddedBroker
from tests.e2e.config_extremes import Extremes

ROUNDS = 12


async def rounds(bootstrap: str, seed: int) -> Extremes:
    async with Client(bootstrap) as client:
        load = Extremes(client, Random(seed))
        for number in range(ROUNDS):
            await load.round(f"topic-{number}")
    return load


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_some_rounds(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), EmbeddedBroker() as broker:
        load = asyncio.run(rounds(broker.bootstrap_servers, seed))
        folders = sorted(path.name for path in broker.data.iterdir() if path.is_dir())
    assert not load.unexpected
    assert load.answers["NONE"] > 0 and load.answers["INVALID_CONFIG"] > 0
    assert not [record.getMessage() for record in caplog.records]
    assert not [name for name in folders if name.startswith("topic-") and "-delete" not in name]
